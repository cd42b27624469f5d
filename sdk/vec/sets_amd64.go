package vec

func supportedSets() []kernelSet { return []kernelSet{setGeneric} }
