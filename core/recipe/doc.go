// Package recipe is the front end: it runs a recipe, a Starlark file, and returns the run that it describes as a [train.Spec].
//
// It owns the recipe language: the predeclared names, how arguments are checked and errors are worded, what a recipe may
// load, and how functions over symbolic tensors become graphs. It must not know devices, ranks, plans or files of a run; it never
// computes with a tensor.
//
// # How a recipe becomes a graph
//
// [Load] executes the file once. That declares params and ends in one call of train, which records settings and functions. The
// loss is not called yet: [train.Model].Loss calls it, in a fresh trace, whenever a graph is needed. In a trace each operator and each
// function of ops appends one node to the graph and returns a symbolic [Tensor]; nn.block opens a name, and
// parameters take their names from the blocks that are open. Globals are frozen when the file ends, so a trace
// cannot leave anything behind and equal calls give equal graphs.
//
// # What a recipe cannot do
//
// It has no clock, no randomness, no network and no files but those it loads: @std//… from the binary, and others
// from its own folder, which neither .. nor a symbolic link leaves. Execution steps are bounded: one budget
// for the recipe with all that it loads, the same again for each trace, and a smaller one for each call of a hook.
//
// # Errors
//
// Every mistake is an [Error] that points at the innermost line of the user's own files. Wrong names of
// functions, attributes, arguments and params suggest the nearest right one.
//
// # The standard library
//
// Package recipes embeds it. The file nn.star is executed before the recipe, and its functions join the namespace nn.
package recipe
