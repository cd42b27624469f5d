package recipe

import (
	"fmt"
	"slices"
	"strings"
)

// People come with the names of other libraries. What those are called here, or what to do where there is no such thing.

// foreignNames are hints by namespace (or "a tensor") and the name in lower case without underscores.
var foreignNames = map[string]map[string]string{
	"nn": {
		"batchnorm": writeBatchNorm, "batchnorm1d": writeBatchNorm, "batchnorm2d": writeBatchNorm,
		"module": noModules, "sequential": noModules, "modulelist": noModules, "functional": "the functions without parameters are in ops",
		"multiheadattention": `write nn.block("attn", nn.attention, x, heads)`,
		"lstm":               noRecurrence, "gru": noRecurrence, "rnn": noRecurrence,
		"conv1d":               `there is none; reshape to [B, C, 1, T] and use nn.conv2d("name", x, features, size = (1, 3))`,
		"bceloss":              noBinaryLoss,
		"binarycrossentropy":   noBinaryLoss,
		"bcewithlogitsloss":    noBinaryLoss,
		"l1loss":               "write nn.weighted(ops.sum(ops.abs(a - b)), weight)",
		"adaptiveavgpool2d":    "write ops.mean(x, axes = [2, 3])",
		"globalaveragepooling": "write ops.mean(x, axes = [2, 3])",
	},
	"ops": {
		"permute": "write ops.transpose(x, perm)", "view": "write ops.reshape(x, shape)", "unsqueeze": "write ops.reshape(x, shape)",
		"squeeze": "write ops.reshape(x, shape)", "expanddims": "write ops.reshape(x, shape)", "flatten": "write nn.flatten(x) or ops.reshape(x, shape)",
		"where": "there is none; multiply by a mask of zeros and ones, such as ops.equal(a, b), or use ops.maximum and ops.minimum",
		"stack": "give each tensor another axis with ops.reshape, then ops.concat(xs, axis)",
		"cat":   "write ops.concat(xs, axis)", "concatenate": "write ops.concat(xs, axis)", "chunk": "write ops.split(x, sizes, axis)",
		"mm": "write ops.matmul(a, b)", "bmm": "write ops.matmul(a, b)", "dot": "write ops.matmul(a, b)", "einsum": "write ops.matmul(a, b), with ops.reshape and ops.transpose around it",
		"clamp": "write ops.minimum(ops.maximum(x, low), high)", "clip": "write ops.minimum(ops.maximum(x, low), high)",
		"zeros": "write ops.full(shape, 0.0)", "ones": "write ops.full(shape, 1.0)", "expand": "write ops.broadcast_to(x, shape)", "gather": "rows of a table are ops.embedding(table, ids)",
		"randn": noRandomness, "rand": noRandomness, "detach": "write ops.stop_gradient(x)", "negative": "write ops.neg(x)", "sub": "write ops.sub(a, b)",
		"min": "write ops.neg(ops.max(ops.neg(x)))", "argmin": "write ops.argmax(ops.neg(x))",
	},
	"a tensor": {
		"view": "write ops.reshape(x, shape)", "permute": "write ops.transpose(x, perm)", "t": "write ops.transpose(x)", "unsqueeze": "write ops.reshape(x, shape)",
		"squeeze": "write ops.reshape(x, shape)", "flatten": "write nn.flatten(x)", "expand": "write ops.broadcast_to(x, shape)", "detach": "write ops.stop_gradient(x)",
		"float": `write ops.cast(x, "f32")`, "to": `write ops.cast(x, dtype)`, "astype": `write ops.cast(x, dtype)`, "ndim": "write x.rank", "dim": "write x.rank",
		"numel": "write x.size", "item": noContent, "numpy": noContent, "tolist": noContent, "backward": "gradients are computed by the run, of the loss that the function returns",
	},
	"optim": {"adam": "write optim.adamw(lr, weight_decay = 0.0)"},
	"data":  {"dataloader": "write loader(source.train, global_batch, micro_batch)"},
}

const (
	writeBatchNorm = `write nn.batch_norm("name", x)`
	noModules      = "there are no modules: a model is a function of tensors that calls layers by name"
	noRecurrence   = "there is none; write its steps as a loop over ops, or use nn.attention"
	noBinaryLoss   = "there is none; use nn.cross_entropy(logits, labels) with two classes"
	noRandomness   = "a recipe has no randomness of its own; parameters are drawn by init.…, and ops.dropout draws while training"
	noContent      = "a tensor has no content while a model is traced"
)

// foreignArguments are what arguments of other libraries may be called here.
var foreignArguments = map[string][]string{
	"batch_size": {"global_batch", "micro_batch"}, "dim": {"axes", "axis"}, "dims": {"axes", "perm"}, "axis": {"axes"}, "axes": {"axis", "perm"}, "keepdim": {"keep"}, "keepdims": {"keep"},
	"kernel_size": {"size"}, "out_features": {"features"}, "out_channels": {"features"}, "num_heads": {"heads"}, "n_head": {"heads"}, "n_layer": {"layers"}, "num_layers": {"layers"},
	"n_embd": {"width"}, "d_model": {"width"}, "hidden_size": {"width"}, "block_size": {"context"}, "seq_len": {"context"}, "max_len": {"context"},
	"learning_rate": {"lr", "base_lr", "peak"}, "max_steps": {"steps"}, "num_steps": {"steps"}, "num_epochs": {"epochs"}, "num_workers": {"workers"}, "dataset": {"source", "data"},
	"grad_clip": {"clip_norm"}, "max_grad_norm": {"clip_norm"}, "max_norm": {"clip_norm"}, "gradient_clip": {"clip_norm"}, "norm_type": {"clip_norm_type"}, "clip_grad_value": {"clip_value"}, "clipvalue": {"clip_value"}, "clipnorm": {"clip_norm"}, "dtype": {"precision"}, "max_tokens": {"tokens"},
	"max_new_tokens": {"tokens"}, "ignore_index": {"ignore"}, "prob": {"p"}, "rate": {"p"}, "labels": {"targets", "target"}, "input": {"x", "logits", "prediction"},
	"validation_split": {"holdout"}, "val_split": {"holdout"}, "test_size": {"holdout"}, "delimiter": {"separator"}, "sep": {"separator"}, "num_classes": {"classes"}, "std": {"value"},
}

// fromInput are arguments of layers that are not given here: the input's shape says it.
var fromInput = []string{"in_features", "in_channels", "input_size", "input_dim", "normalized_shape"}

// lastDimension are the functions that work along the last dimension and take no axis.
var lastDimension = []string{"ops.softmax", "ops.log_softmax", "ops.argmax", "ops.layer_norm", "ops.rms_norm", "nn.layer_norm", "nn.rms_norm"}

// unexpectedArgument is the error of an argument that fn does not have.
func unexpectedArgument(fn, arg string, names []string) string {
	msg := fmt.Sprintf("unexpected argument %q", arg)
	var here []string
	for _, name := range foreignArguments[arg] {
		if slices.Contains(names, name) {
			here = append(here, name)
		}
	}
	switch {
	case arg == "batch_size" && len(here) == 2:
		return msg + "; give global_batch, the samples of an optimizer step, and micro_batch, those of one forward and backward pass"
	case len(here) > 0:
		return fmt.Sprintf("%s; it is called %s here", msg, strings.Join(here, " or "))
	case slices.Contains(fromInput, arg) && slices.Contains(names, "x"):
		return msg + "; leave it out, the shape of x says it"
	case slices.Contains([]string{"dim", "axis", "axes"}, arg) && slices.Contains(lastDimension, fn):
		return msg + "; it works along the last dimension: move another one there with ops.transpose"
	}
	return msg + didYouMean(arg, names)
}

// fewNames is how many names an error lists that has no suggestion.
const fewNames = 8

// noAttribute is the error of a name that a namespace or a value does not have.
func noAttribute(kind, name string, names []string) error {
	msg := fmt.Sprintf("%s has no %q", kind, name)
	plain := strings.ToLower(strings.ReplaceAll(name, "_", ""))
	for _, n := range names {
		if strings.ReplaceAll(n, "_", "") == plain {
			return fmt.Errorf("%s; did you mean %q?", msg, n)
		}
	}
	hint := foreignNames[kind][plain]
	if hint == "" && kind == "nn" {
		if strings.HasPrefix(plain, "embedding") {
			hint = `write nn.embedding(nn.table("name", rows, width), ids)`
		} else if isOp(strings.ToLower(name)) {
			hint = fmt.Sprintf("write ops.%s(x, …)", strings.ToLower(name))
		}
	}
	if hint == "" && kind == "ops" && slices.ContainsFunc(libraryFunctions("nn.star"), func(e entry) bool { return e.name == strings.ToLower(name) }) {
		hint = fmt.Sprintf("write nn.%s(…)", strings.ToLower(name))
	}
	switch near := didYouMean(name, names); {
	case hint != "":
		return fmt.Errorf("%s; %s", msg, hint)
	case near != "":
		return fmt.Errorf("%s%s", msg, near)
	case len(names) > 0 && len(names) <= fewNames:
		return fmt.Errorf("%s; it has %s", msg, strings.Join(names, ", "))
	}
	return fmt.Errorf("%s", msg)
}
