// Package recipes holds the recipes that come with the program, and embeds the standard library that
// recipes load as @std//….
//
// It has no code: std/nn.star is the layers, std/models the models, and the files beside this one are recipes to run.
package recipes

import "embed"

// Std is the standard library, below the folder std.
//
//go:embed std/*.star std/models/*.star
var Std embed.FS

// Measured are the recipes whose steps the program times by itself.
//
//go:embed quickstart.star gpt2_124m.star
var Measured embed.FS
