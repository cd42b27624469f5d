// Package compress makes gradients small enough for slow links.
//
// A Config says how: int8 with a scale for each block, bfloat16, the largest elements only (top-k), Deep Gradient Compression
// (Lin et al., 2018), PowerSGD (Vogels et al., 2019), or a method from outside (External). What a method loses is never thrown away: it is added to what is sent
// next (error feedback), so that over time the sum of what was sent and of what is left equals the sum of all gradients.
//
// Two types carry a method out, each for one vector and one contributor:
//
//   - A Stream compresses element by element. Its contributor's part of each chunk is compressed once (Send), the chunk's owner
//     decodes (Receive) and adds the parts, and compresses the sum once more, with an error feedback of its own (Return).
//   - A Factors replaces matrices by products of two thin ones, whose sums over all contributors need no owner.
//
// Gradients come multiplied, by a loss scale for instance. All that is kept and sent is divided by that, so that it may differ from step
// to step.
// A step that was not taken leaves no trace: with Config.Transactional a step works on copies until Commit.
//
// Everything is deterministic: ties are broken by position, sums have a fixed order, and the bits are those of every
// instruction set.
//
// # What it must not know
//
// Ranks, groups and transports (core/comm moves the bytes), parameters, checkpoints and recipes.
package compress
