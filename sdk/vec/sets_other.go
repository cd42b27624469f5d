//go:build !amd64

package vec

func supportedSets() []kernelSet { return []kernelSet{setGeneric} }
