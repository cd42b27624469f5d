// Package checkpoint keeps the state of a run on disk: sharded, checksummed,
// committed atomically, and readable by any number of ranks whatever number
// wrote it. It also writes single safetensors files, and hashes weights.
//
// It must not know what the tensors mean, how ranks are connected, or what the
// trainer's state holds: tensors are names, types, shapes and bytes; the trainer's
// state is a JSON document it never looks into.
//
// # Writing
//
// Each rank writes its pieces with [WriteShard]; one of them, once it has every
// rank's [Shard], calls [Commit]. [Saver] does both in the background from a copy
// of the tensors, so that training goes on at once. Then it deletes what is past
// its keep, never before the new checkpoint is committed.
//
// # Reading
//
// [Latest] finds the newest checkpoint whose every byte is as it was written, and
// names those it passed over and why. [Open] opens one; [Checkpoint.ReadRange] reads
// any elements of any tensor, from whichever shards hold them.
//
// # The folder of checkpoints
//
//	checkpoints/
//	    best                          text: the name of the best checkpoint and a newline
//	    step-00000250/                one checkpoint, after optimizer step 250
//	        shard-00000.safetensors   tensors, or pieces of tensors
//	        shard-00001.safetensors
//	        trainer.json              the trainer's state
//	        manifest.json             every file and every tensor
//	        COMMIT                    the commit marker: the SHA-256 of manifest.json
//	    .tmp-step-00000500/           being written; or left by a run that was killed
//	    .old-step-00000250/           a checkpoint in the moment it is replaced by one of the same step
//	    .del-step-00000100/           being deleted
//
// The step has eight digits, more when it needs them. A checkpoint is made in its
// .tmp folder: shards and trainer.json first, each synced to disk; then manifest.json;
// then COMMIT, written beside its place and renamed into it; then the folder is
// synced and renamed to its name, and the parent synced. A folder without COMMIT is
// no checkpoint. Where a checkpoint of that step already exists it is moved to .old
// for the moment between two renames; readers count an .old folder as that step's
// checkpoint while there is no other. Deleting renames to .del first, so that a
// folder with a checkpoint's name is never half gone.
//
// # COMMIT
//
// One line, as the sha256sum program writes and checks it:
//
//	<64 hexadecimal digits>  manifest.json\n
//
// # manifest.json
//
//	{
//	  "format": "starling-checkpoint",
//	  "version": 1,
//	  "step": 250,
//	  "files": [
//	    {"name": "shard-00000.safetensors", "size": 1184, "sha256": "…"},
//	    {"name": "trainer.json", "size": 57, "sha256": "…"}
//	  ],
//	  "tensors": [
//	    {"name": "wte", "dtype": "F32", "shape": [256, 96],
//	     "pieces": [{"file": "shard-00000.safetensors", "offset": 0, "count": 12288},
//	                {"file": "shard-00001.safetensors", "offset": 12288, "count": 12288}]}
//	  ]
//	}
//
// files lists every file but manifest.json and COMMIT, sorted by name, sizes in bytes.
// tensors is sorted by name. A piece is a run of count elements of the tensor,
// flattened in row-major order, from element offset. Pieces are sorted by offset, do
// not overlap, and make up the whole tensor: never padding, never a rank's number.
// dtype is one of safetensors' names: BOOL, U8, I8, F8_E4M3, F8_E5M2, U16, I16, F16, BF16, U32,
// I32, F32, U64, I64, F64. By the project's convention a parameter's tensor has the parameter's
// name and optimizer state is <parameter>/<slot>. Readers ignore keys they do not know, and
// refuse another format or version.
//
// # Shards
//
// A shard is a safetensors file (https://github.com/huggingface/safetensors):
//
//	8 bytes    length N of the header, unsigned, little-endian
//	N bytes    header: a JSON object, padded with spaces
//	the rest   tensor data, little-endian
//
// The header maps each key to {"dtype": …, "shape": […], "data_offsets": [begin, end]}, byte
// offsets from the end of the header. A piece that is a whole tensor has the tensor's name as its key
// and the tensor's shape; another piece has the key name[first:last], as a slice in
// Python, and the shape [last-first]. "__metadata__" holds "format" ("starling-checkpoint-shard"),
// "version" ("1") and "step". The files this package writes keep data in descending
// order of element size, then by key, without gaps, and pad the header so that the data
// begins at a multiple of 64 bytes. A checkpoint that one rank wrote is one ordinary
// safetensors file plus its manifest, and opens in any program that reads the format.
package checkpoint
