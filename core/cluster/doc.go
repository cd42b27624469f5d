// Package cluster starts the ranks of a job, brings them together and ends them together.
//
// Launch starts one worker process per rank, on this machine or others; in the worker, Join connects it to the launcher and to the
// other ranks and returns a Worker. InProcess runs ranks as goroutines with the same Worker, so that a trainer is written
// once:
//
//	launcher                                    worker
//	results, err := cluster.Launch(ctx, cfg)    w, err := cluster.Join(ctx, cluster.JoinConfig{Digest: …, Class: …})
//	                                            group, err := comm.NewGroup(w.Transport(), "data", ranks, comm.Options{})
//	                                            … w.Status("step 12"), w.Event(metrics), <-w.StopRequested() …
//	                                            w.Done(result)  or  w.Fail(err)
//
// # How a job comes together
//
// Each worker has a control connection to the launcher: an inherited end of a socket pair; the standard input and output of
// a remote shell (Config.Places, a cluster file); or, for a process that srun, mpirun or Kubernetes has started
// (Environment, Attend), an encrypted connection to the rendezvous (Config.Rendezvous), whose keys are derived from the secret that
// such processes share. The run's own secret and credentials come through it (so they are on no command line, in no environment
// and in no log), and its end tells either side that the other is gone. A worker takes its seat (Seat), opens its listener, announces
// the address, receives the table of all addresses, connects the mesh (core/comm) and goes on when all ranks have.
//
// # How it ends
//
// In order: every worker calls Done. On request: the first SIGINT or SIGTERM (to the launcher or to any worker) closes
// StopRequested on every rank; the trainer agrees on a step, saves and calls Done; a second signal or StopGrace kills. By
// failure: when a worker dies, reports an error or falls silent, all the others are told at once which rank failed and
// why, get Grace to end, and are then killed; Launch returns a *RankError naming the first rank that failed, its cause and
// the end of its stderr. Workers do not outlive the launcher, even if it is killed.
//
// The decisions — who failed first, when to wait, when to kill — are a state machine without IO or clock (job).
//
// # What it must not know
//
// Recipes, training, checkpoints: results, events and status are the caller's bytes and words.
package cluster
