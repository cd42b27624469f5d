"""What recipes find predeclared, for editors that take stubs: Pyright, for one, reads this file by its name
from the folder that a project is opened in. Recipes are Starlark, which is close enough to Python for that; let the editor
treat *.star as Python.

Generated from the program's own declarations; a test of core/recipe keeps it current.
"""

def param(name, default, help = "", placement = False):
    """a value that --set name=value changes; its type is the default's. placement = True says that it only moves work (ranks, threads, intervals), which matters in a recipe with hooks: the run can then be resumed with another value"""
    ...

def loader(source, global_batch, micro_batch, lanes = None, workers = 4, prefetch = 2, shuffle = True):
    """how samples become steps: global_batch samples an optimizer step, micro_batch at a time; lanes (by default at most 16) is how many ranks can share a step. workers and prefetch change no result"""
    ...

def evaluate(source, every = 0, batches = 0, best = None, best_mode = None, metrics = {}):
    """every so many steps and at the end: the loss and metrics on held-out data, over so many global batches (0: all); best keeps the checkpoint that is best by "loss" or a metric, its best_mode "min" or "max"; a metric is a function of the batch, such as one that returns nn.accuracy(…)"""
    ...

def checkpoint(every = 0, keep = 3):
    """checkpoints every so many steps (0: only at the end), the newest keep of them"""
    ...

def sample(model, prompt = "", tokens = 200, every = 0, temperature = 1.0, top_k = 0, context = None, tokenizer = None):
    """text drawn from model(tokens) every so many steps and at the end; context and tokenizer are those of the training data"""
    ...

def train(*, loss, data, optimizer, steps = None, epochs = None, clip_norm = None, clip_norm_type = 2, clip_value = None, precision = None, parallel = None, recompute = None, evaluate = None, checkpoint = None, sample = None, seed = 1, on_step = None, on_eval = None):
    """the run: exactly once in a recipe. loss(batch) returns a loss; steps or epochs; clip_norm bounds the gradient's global norm (clip_norm_type 2, 1 or "inf", which grad_norm reports), then clip_value each of its elements; sample is one or a list; on_step(m) and on_eval(m) see the metrics and may return actions"""
    ...

class data:
    """where samples come from"""

    @staticmethod
    def text(pattern, *, context, tokenizer = None, holdout = 0.0):
        """the files that a glob matches, as windows of context tokens: fields tokens and targets, i32[context]; $GOROOT is the Go toolchain's folder, relative patterns start at the recipe; holdout is the fraction of files kept out of training; attributes train, holdout, vocab, context"""
        ...

    @staticmethod
    def csv(path, *, classes = None, target = None, shape = None, label = None, scale = 1.0, holdout = 0.0, separator = ","):
        """a table of feature columns, times scale, and one more: with classes a column label of whole numbers (by name or number, by default the last), fields features f32[shape] and labels i32[]; with target, the name or number of a column of real numbers, fields features f32[shape] and targets f32[1]; attributes train, holdout, shape, and classes"""
        ...

    @staticmethod
    def cifar10(files = None, *, samples = 2000, seed = 0, holdout = 0.1):
        """images f32[3,32,32] of ten classes: the files that a glob matches, of CIFAR-10's binary version, such as "cifar-10-batches-bin/*.bin"; without files as many drawn ones as samples says, nothing to download: fields features and labels i32[]; attributes train, holdout, classes, shape"""
        ...

    @staticmethod
    def digits(samples = 4000, *, seed = 0, noise = 0.2, holdout = 0.1):
        """drawn images of the digits 0 to 9, nothing to download: fields features f32[1,12,12] and labels i32[]; attributes train, holdout, classes, shape"""
        ...

class tokenizer:
    """how text becomes tokens"""

    @staticmethod
    def bytes():
        """every byte is a token: 256 of them, any text is valid"""
        ...

class nn:
    """layers: blocks and parameters here, everything else in @std//nn.star"""

    @staticmethod
    def block(name, fn, *args, **kwargs):
        """fn(*args, **kwargs), with the parameters made in it named name.…"""
        ...

    @staticmethod
    def param(name, shape, init, frozen = False):
        """a trainable parameter, named by the blocks it is made in; frozen keeps it as it is"""
        ...

    @staticmethod
    def table(name, rows, width, init = None):
        """a table name.weight[rows, width] to look up or to share: see nn.embedding and nn.linear(tied = …); normal(0.02) by default"""
        ...

    @staticmethod
    def batch_norm(name, x, eps = 1e-5, momentum = 0.1, init = None):
        """each channel of x[N,C,…] to zero mean and unit variance over the micro-batch, times weight (1 at first unless init says otherwise), plus bias; evaluation uses the running averages name.running_mean and name.running_var, which move by momentum once a step towards the mean over all micro-batches"""
        ...

    @staticmethod
    def weighted(sum, weight):
        """a loss or metric from two scalars: its value is sum over weight, taken over the whole global batch"""
        ...

    @staticmethod
    def linear(name, x, features, bias = None, init = None, bias_init = None, tied = None):
        """x[..., I] times weight[features, I] transposed, plus bias[features]."""
        ...

    @staticmethod
    def embedding(table, ids):
        """Rows of an nn.table by ids: [B, T] gives [B, T, C]."""
        ...

    @staticmethod
    def positions(name, context, width, length = None, init = None):
        """Learned positions: the first length rows (all by default) of a table name.weight[context, width]."""
        ...

    @staticmethod
    def layer_norm(name, x, bias = True, eps = 1e-5):
        """Zero mean and unit variance over the last dimension, then a learned scale and offset."""
        ...

    @staticmethod
    def rms_norm(name, x, eps = 1e-5):
        """Unit root mean square over the last dimension, then a learned scale (Zhang and Sennrich, 2019)."""
        ...

    @staticmethod
    def relu(x):
        """The greater of x and 0."""
        ...

    @staticmethod
    def gelu(x, exact = False):
        """Gaussian error linear unit, in the tanh form of GPT-2 or exact."""
        ...

    @staticmethod
    def silu(x):
        """x * sigmoid(x), also called swish."""
        ...

    @staticmethod
    def dropout(x, p):
        """While training, zeroes elements with probability p and scales the others by 1/(1-p)."""
        ...

    @staticmethod
    def attention(x, heads, kv_heads = None, causal = True, rotary = False, rope_base = 10000.0, dropout = 0.0, bias = True, init = None, proj_init = None):
        """Multi-head self-attention over x[B, T, C]; use it as nn.block("attn", nn.attention, x, heads)."""
        ...

    @staticmethod
    def mlp(x, hidden, activation = "gelu", dropout = 0.0, bias = True, init = None, proj_init = None):
        """Two layers, up and down, with gelu, relu or silu between; or "swiglu", which has a third, gate (Shazeer, 2020)."""
        ...

    @staticmethod
    def conv2d(name, x, features, size = 3, stride = 1, padding = 0, dilation = 1, groups = 1, bias = True, init = None):
        """A convolution with features output channels; size, stride, padding and dilation are ints or (height, width)."""
        ...

    @staticmethod
    def max_pool(x, size, stride = None, padding = 0):
        """The maximum of each window; stride is size by default."""
        ...

    @staticmethod
    def avg_pool(x, size, stride = None, padding = 0):
        """The mean of each window; stride is size by default."""
        ...

    @staticmethod
    def flatten(x):
        """Every dimension but the first as one: [B, …] becomes [B, C]."""
        ...

    @staticmethod
    def cross_entropy(logits, targets, ignore = -1):
        """Cross-entropy of logits[..., V] and targets[...], for each target that is not negative or equal to ignore."""
        ...

    @staticmethod
    def mse(prediction, target, weight):
        """Mean squared error for each element; weight is batch.weight, which leaves out the padding of short batches, or None to count every element."""
        ...

    @staticmethod
    def accuracy(logits, targets):
        """The share of targets, among those that are not negative, that have the greatest logit: a metric, it has no gradient."""
        ...

class init:
    """initial values of parameters, drawn by the parameter's name"""

    @staticmethod
    def zeros():
        """every element 0"""
        ...

    @staticmethod
    def ones():
        """every element 1"""
        ...

    @staticmethod
    def constant(value):
        """every element equal to value"""
        ...

    @staticmethod
    def uniform(low, high):
        """uniform in [low, high)"""
        ...

    @staticmethod
    def normal(std = 0.02, mean = 0.0):
        """a normal distribution"""
        ...

class ops:
    """differentiable primitives"""

    @staticmethod
    def full(shape, value):
        """a constant tensor with every element equal to value"""
        ...

    @staticmethod
    def cast(x, dtype):
        """x in another element type, such as "i32" or "f32", rounded to nearest even"""
        ...

    @staticmethod
    def pow(x, exponent):
        """x to the power of a number"""
        ...

    @staticmethod
    def maximum(a, b):
        """the greater of a and b, element by element; either may be a number"""
        ...

    @staticmethod
    def minimum(a, b):
        """the lesser of a and b, element by element; either may be a number"""
        ...

    @staticmethod
    def equal(a, b):
        """1.0 where the int tensors a and b are equal, else 0.0; no gradient"""
        ...

    @staticmethod
    def gelu(x, exact = False):
        """Gaussian error linear unit: the tanh form, or exact with erf"""
        ...

    @staticmethod
    def swiglu(gate, up):
        """silu(gate) * up"""
        ...

    @staticmethod
    def reshape(x, shape):
        """the same elements in another shape; one entry may be -1, for what is left"""
        ...

    @staticmethod
    def transpose(x, perm = None):
        """dimension i of the result is dimension perm[i] of x; by default the last two change places"""
        ...

    @staticmethod
    def slice(x, axis, start, end):
        """elements start to end-1 of one axis; negative numbers count from the end"""
        ...

    @staticmethod
    def split(x, sizes, axis = -1):
        """x cut along an axis into parts of the given sizes, as a list"""
        ...

    @staticmethod
    def concat(xs, axis = -1):
        """tensors one after another along an axis"""
        ...

    @staticmethod
    def broadcast_to(x, shape):
        """x repeated to a larger shape by NumPy's rule"""
        ...

    @staticmethod
    def sum(x, axes = None, keep = False):
        """the sum over axes, by default all of them; keep leaves them as 1"""
        ...

    @staticmethod
    def mean(x, axes = None, keep = False):
        """the mean over axes, by default all of them; keep leaves them as 1"""
        ...

    @staticmethod
    def max(x, axes = None, keep = False):
        """the maximum over axes, by default all of them; keep leaves them as 1"""
        ...

    @staticmethod
    def matmul(a, b, trans_a = False, trans_b = False):
        """matrix product of the last two dimensions [...,M,K] by [...,K,N]; the others broadcast"""
        ...

    @staticmethod
    def linear(x, weight, bias = None):
        """x[...,I] times weight[O,I] transposed, plus bias[O]"""
        ...

    @staticmethod
    def embedding(table, ids):
        """rows of table[V,C] by the int tensor ids[...]: [...,C]"""
        ...

    @staticmethod
    def layer_norm(x, weight, bias = None, eps = 1e-5):
        """zero mean and unit variance over the last dimension, times weight, plus bias"""
        ...

    @staticmethod
    def rms_norm(x, weight, eps = 1e-5):
        """unit root mean square over the last dimension, times weight"""
        ...

    @staticmethod
    def attention(q, k, v, causal = True, scale = None, segments = None):
        """softmax(scale * q k) v for q[B,T,H,D] and k, v[B,S,G,D], H a multiple of G; scale is 1/sqrt(D) by default; segments i32[B,T], or a pair for q and k: attend inside equal ids only"""
        ...

    @staticmethod
    def rotary(x, base = 10000.0, offset = 0):
        """rotary positions for x[B,T,H,D]: pairs (i, i + D/2) turn by position * base^(-2i/D)"""
        ...

    @staticmethod
    def dropout(x, p):
        """while training, zeroes elements with probability p and scales the others by 1/(1-p)"""
        ...

    @staticmethod
    def cross_entropy(logits, targets, ignore = -1):
        """(sum, weight): the summed cross-entropy of logits[...,V] and targets i32[...], and the number of rows that count; targets that are negative or equal ignore do not"""
        ...

    @staticmethod
    def conv2d(x, weight, bias = None, stride = 1, padding = 0, dilation = 1, groups = 1):
        """convolution of x[N,C,H,W] by weight[O,C/groups,KH,KW]"""
        ...

    @staticmethod
    def max_pool(x, size, stride = None, padding = 0):
        """the maximum of each window of x[N,C,H,W]; stride is size by default"""
        ...

    @staticmethod
    def avg_pool(x, size, stride = None, padding = 0):
        """the mean of each window of x[N,C,H,W], padding counted as zeros; stride is size by default"""
        ...

    @staticmethod
    def neg(x):
        """-x"""
        ...

    @staticmethod
    def exp(x):
        """e to the power of x"""
        ...

    @staticmethod
    def log(x):
        """natural logarithm"""
        ...

    @staticmethod
    def sqrt(x):
        """square root"""
        ...

    @staticmethod
    def rsqrt(x):
        """1 / sqrt(x)"""
        ...

    @staticmethod
    def square(x):
        """x * x"""
        ...

    @staticmethod
    def abs(x):
        """absolute value"""
        ...

    @staticmethod
    def tanh(x):
        """hyperbolic tangent"""
        ...

    @staticmethod
    def sigmoid(x):
        """1 / (1 + e^-x)"""
        ...

    @staticmethod
    def relu(x):
        """the greater of x and 0"""
        ...

    @staticmethod
    def silu(x):
        """x * sigmoid(x)"""
        ...

    @staticmethod
    def softmax(x):
        """softmax over the last dimension"""
        ...

    @staticmethod
    def log_softmax(x):
        """logarithm of the softmax over the last dimension"""
        ...

    @staticmethod
    def argmax(x):
        """index of the first maximum of the last dimension, i32; no gradient"""
        ...

    @staticmethod
    def stop_gradient(x):
        """x, but no gradient flows into it"""
        ...

    @staticmethod
    def add(a, b):
        """a + b, broadcasting; either may be a number"""
        ...

    @staticmethod
    def sub(a, b):
        """a - b, broadcasting; either may be a number"""
        ...

    @staticmethod
    def mul(a, b):
        """a * b, broadcasting; either may be a number"""
        ...

    @staticmethod
    def div(a, b):
        """a / b, broadcasting; either may be a number"""
        ...

class optim:
    """optimizers"""

    @staticmethod
    def adamw(lr, betas = (0.9, 0.999), eps = 1e-8, weight_decay = 0.01, groups = [], state = "fp32"):
        """Adam with decoupled weight decay; lr is a number or a schedule; one-dimensional parameters get no decay; state is how its moments are kept: "fp32", "bf16" or "int8" (8 bits, scaled block by block)"""
        ...

    @staticmethod
    def sgd(lr, momentum = 0.0, dampening = 0.0, nesterov = False, weight_decay = 0.0, groups = []):
        """stochastic gradient descent; lr is a number or a schedule"""
        ...

    @staticmethod
    def mix(choices, rest):
        """several optimizers: choices is a list of pairs (pattern, optimizer), each parameter goes to the first whose pattern matches its name and that takes its shape, the others to rest"""
        ...

    @staticmethod
    def group(pattern, lr_scale = 1.0, weight_decay = None):
        """other settings for the parameters whose name matches a glob, such as "h.*.bias"; the first group that matches wins"""
        ...

class plugin:
    """extensions that are programs of their own"""

    @staticmethod
    def optimizer(name, lr, groups = [], *args, **kwargs):
        """an optimizer that is a program of its own, found by its name in the folder plugins beside the recipe, the user's folder or --plugin-dir; hypers are its own, runtime plugin info NAME lists them"""
        ...

    @staticmethod
    def schedule(name, total, *args, **kwargs):
        """a learning-rate schedule that a plugin gives, asked for the rates of total steps before the run begins; after them the last one stays; the settings are the plugin's own"""
        ...

    @staticmethod
    def compressor(name, *args, **kwargs):
        """gradients made small by a plugin, for parallel.mesh(compress = …); the settings are the plugin's own, runtime plugin info NAME lists them"""
        ...

    @staticmethod
    def sink(name, *args, **kwargs):
        """hands the run's figures to a plugin as well; the settings are the plugin's own, runtime plugin info NAME lists them"""
        ...

class schedule:
    """learning rates over the optimizer steps"""

    @staticmethod
    def constant(lr):
        """the same learning rate at every step"""
        ...

    @staticmethod
    def step(lr, every, gamma = 0.1):
        """lr, multiplied by gamma after every so many steps"""
        ...

    @staticmethod
    def linear(start, end, total):
        """a straight line from start at step 0 to end at step total, then end"""
        ...

    @staticmethod
    def warmup_cosine(peak, warmup, total, floor = 0.1):
        """a linear rise to peak over warmup steps, then half a cosine down to floor * peak at step total"""
        ...

    @staticmethod
    def scale_by_batch(base_lr, base_batch, rule = "linear"):
        """a learning rate found at base_batch, scaled to the recipe's global batch by their ratio ("linear") or its square root ("sqrt"); it stands wherever a learning rate may"""
        ...

class precision:
    """number formats"""

    @staticmethod
    def fp32(reduce_dtype = None):
        """32-bit floating point throughout; reduce_dtype ("fp32", "bf16" or "fp16") is the type in which gradients are added and travel"""
        ...

    @staticmethod
    def bf16(reduce_dtype = None):
        """weights in use, products and activations in bfloat16; the optimizer's weights, sums of gradients, norms, softmax and loss in 32 bits; reduce_dtype ("fp32", "bf16" or "fp16") is the type in which gradients are added and travel"""
        ...

    @staticmethod
    def fp16(loss_scale = None, reduce_dtype = None):
        """as bf16, in IEEE half precision, whose range is small: the loss is scaled, by default by loss_scale.dynamic(); reduce_dtype ("fp32", "bf16" or "fp16") is the type in which gradients are added and travel"""
        ...

class loss_scale:
    """what small gradients are multiplied by in 16 bits"""

    @staticmethod
    def dynamic(init = 32768.0, factor = 2.0, window = 2000, hysteresis = 1, floor = 1.0, backoff = "at_once"):
        """grows by factor after window clean steps; a step that overflows is skipped, and the hysteresis-th such step since it grew divides the scale by factor, at_once or at the window_end; an overflow at the floor ends the run"""
        ...

    @staticmethod
    def static(scale):
        """always the same; a step that overflows is skipped, a hundred in a row end the run"""
        ...

class parallel:
    """placement"""

    @staticmethod
    def mesh(data = 1, bucket_mb = 25.0, first_bucket_mb = 1.0, threads = 0, timeout = 60.0, zero = 0, overlap = True, keep_gathered = False, keep_whole_kb = 0.0, memory = None, offload = None, reduction = "canonical", compress = None, shard = 0, offload_activations = False, host_memory = None, hosts = None):
        """placement, which changes no result but for reduction and compress: data-parallel ranks, the size of gradient buckets, CPU threads a rank (0: the cores shared out), seconds until a collective gives up; zero shards over the ranks 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too; overlap lets communication run beside computation; with zero = 3 keep_gathered keeps a block's parameters from its forward to its backward pass, and groups of parameters below keep_whole_kb stay whole, and shard neighbouring ranks, such as those of a host, keep one copy of the parameters among them (0: all ranks do); a run that needs more than memory on a rank, such as "2GB", is refused; reduction = "fast" sums gradients in whatever order is quickest ("ring" and "doubling" force one), so that weights depend on the ranks, where "direct" and "hierarchical" force an algorithm of the canonical order; offload = "disk" keeps the optimizer's state, and sharded parameters, in files of the run's folder, "host" in the host's memory, which memory then does not count and host_memory bounds; offload_activations = True keeps activations there too between the passes; compress is how gradients are compressed between ranks, such as compress.int8(); hosts names the host of each rank, such as ["a"] * 4 + ["b"] * 4, where several are declared on one machine: ranks of one name share memory, and sums are added inside a host first"""
        ...

class compress:
    """gradients made small for slow links; each changes the result"""

    @staticmethod
    def int8(block = 256):
        """eight bits an element, with a scale for each block of elements: a quarter of the bytes"""
        ...

    @staticmethod
    def bf16():
        """rounded to bfloat16: half of the bytes"""
        ...

    @staticmethod
    def topk(ratio = 0.01, warmup = 0):
        """the elements of largest magnitude, ratio of them all; over the first warmup updates more are sent, a quarter at first. Under adaptive optimizers it learns noticeably worse: see compress.dgc"""
        ...

    @staticmethod
    def dgc(ratio = 0.01, warmup = 200, clip = 0.0):
        """Deep Gradient Compression, for optim.sgd with momentum alone: the largest elements of a momentum that each rank keeps; clip bounds the norm of the gradient before it enters the momentum, in place of clip_norm"""
        ...

    @staticmethod
    def powersgd(rank = 4, warmup = 0):
        """PowerSGD: matrices as products of that rank; over the first warmup updates of 8 times, 4 times and twice that rank"""
        ...

class recompute:
    """activations that are computed again instead of kept"""

    @staticmethod
    def all():
        """compute every block's activations again for the backward pass, and keep only what passes from block to block"""
        ...

    @staticmethod
    def every(k):
        """every k-th block, from the first on"""
        ...

    @staticmethod
    def blocks(pattern):
        """the blocks whose name matches, such as "h.*" or "h.3""""
        ...

    @staticmethod
    def budget(bytes):
        """as few blocks as it takes for activations to fit, such as budget("2GB")"""
        ...

class action:
    """what the hooks on_step and on_eval may return"""

    @staticmethod
    def set_lr(lr):
        """from the next step on the learning rate is lr, in place of the schedule's"""
        ...

    @staticmethod
    def scale_lr(factor):
        """from the next step on the schedule's learning rate is multiplied by factor"""
        ...

    @staticmethod
    def stop():
        """end the run after this step"""
        ...

    @staticmethod
    def save():
        """write a checkpoint now"""
        ...

class math:
    """functions of numbers, the same bits on every machine"""

    @staticmethod
    def sqrt(x):
        """square root"""
        ...

    @staticmethod
    def exp(x):
        """e to the power of x"""
        ...

    @staticmethod
    def log(x):
        """natural logarithm"""
        ...

    @staticmethod
    def sin(x):
        """sine of x radians"""
        ...

    @staticmethod
    def cos(x):
        """cosine of x radians"""
        ...

    @staticmethod
    def pow(x, y):
        """x to the power of y"""
        ...

    @staticmethod
    def floor(x):
        """the greatest int that is not above x"""
        ...

    @staticmethod
    def ceil(x):
        """the least int that is not below x"""
        ...

    pi: float
