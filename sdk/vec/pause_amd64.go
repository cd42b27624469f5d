package vec

// Pause waits for a few dozen nanoseconds without burdening a core that two threads share: for loops that wait for another
// thread.
func Pause() { pause(1) }
