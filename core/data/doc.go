// Package data turns a recipe's data source into the micro-batches of a
// training run: sources (text by glob, CSV, generated digits), the byte
// tokenizer, a sampler that says which samples form a micro-batch, and a
// loader that prepares micro-batches ahead of the trainer.
//
// It must not know ranks, devices, tensors, graphs or Starlark. A rank is
// visible here only as the list of micro-batch numbers it asks for.
//
// # From a recipe to a batch
//
//	index, err := data.ScanText(ctx, data.TextConfig{Pattern: "$GOROOT/src/**/*.go", Holdout: 0.02})
//	text, err  := index.Load(ctx, progress)          // every byte read once, text.Fingerprint()
//	train, err := text.Train(64)                     // a Dataset of windows of 64 tokens
//	order, err := data.NewSampler(data.SamplerConfig{Samples: train.Len(), GlobalBatch: 32, MicroBatch: 8, Seed: 1, Shuffle: true})
//	loader, err := data.NewLoader(ctx, data.LoaderConfig{Dataset: train, Sampler: order, Schedule: []int{0, 1}, Start: 0, Steps: 1500})
//	for {
//		batch, err := loader.Next(ctx)               // micro-batch 0 of step 0, 1 of step 0, 0 of step 1, …; io.EOF at the end
//		… batch.Column("tokens").Int32, batch.Weight …
//		batch.Release()
//	}
//	loader.Close()
//
// ScanText only lists files, so that a plan or a check knows every size
// without reading the corpus. Memory is exact before anything is allocated:
// [TextIndex.Bytes] for the corpus and [LoaderBytes] for the queue of batches.
//
// # Which samples form a micro-batch
//
// A step has M = GlobalBatch / MicroBatch micro-batches, numbered 0 … M-1. The
// samples of micro-batch m of step t are a pure function of (seed, t, m) and of
// the recipe's sizes: no rank, world size, worker count or earlier step enters.
//
//   - An epoch has ceil(Len / GlobalBatch) steps and visits every sample exactly
//     once. Step t belongs to epoch t / StepsPerEpoch.
//   - With shuffling, each epoch has its own permutation, keyed by (seed, epoch)
//     and computed element by element (a cycle-walking Feistel network), so that
//     resuming at any step costs nothing and no order is ever stored.
//   - Where GlobalBatch does not divide Len, the last step of an epoch is short: its
//     missing samples are padding of weight zero (inputs 0, targets -1), and
//     whole micro-batches may be padding. Averages weighted by [Batch.Weight]
//     therefore stay exact, and every rank runs the same number of micro-batches.
//
// Evaluation draws its first K batches once, by a fixed permutation, and sees
// the same ones each time: see [NewEvalSampler].
//
// # Text
//
// A text source is the set of regular files that a glob matches (symbolic links
// to files are read; linked directories below the glob's fixed prefix are not
// entered), sorted bytewise by their slash-separated path relative to that
// prefix. Bytes are bytes: files need not be valid UTF-8. A file is held out
// when the first eight bytes, big-endian, of the SHA-256 of its relative path are
// below holdout × 2⁶⁴, so that adding a file never moves another; at least one
// file is held out and one kept (those of the smallest and the largest hash),
// and a corpus of one file gives up the end of its bytes instead. Train and
// holdout are separate streams, each file followed by one separator byte, 0.
//
// Sample i of a stream with context T is the window of bytes iT … iT+T: its
// tokens are the first T of these T+1 bytes, its targets the last T. Windows do not
// overlap but for that one byte: a stream of n bytes has (n-1)/T samples.
//
// # The data fingerprint
//
// SHA-256, in hexadecimal, over: the 29 bytes "starling text fingerprint v1\n", then
// for each used file in sorted order the length of its relative path (8 bytes,
// little-endian), the path, its size (8 bytes, little-endian) and the SHA-256 of
// each successive 4 MiB of its content (the last piece may be shorter). Empty
// files are not used. Arrays hash their shape, features and labels instead; see
// [Array.Fingerprint].
package data
