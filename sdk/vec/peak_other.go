//go:build !amd64

package vec

func fmaRound() int { return fmaRoundGeneric() }

func pairRound() int { return fmaRoundGeneric() }
