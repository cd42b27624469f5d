package sdk

import "embed"

// Source is the source of this module, which the runtime places beside new plugins: no registry has it. Programs that do
// not use it do not carry it.
//
//go:embed go.mod go.sum *.go proto shm vec/*.go vec/*.s python/requirements.txt python/starling_sdk/*.py
var Source embed.FS
