"""HuggingFace models under the same Trainer. Needs `flodl[hf]`; transformers is imported when the first head is made."""

from flodl.hf.base import AutoModel
from flodl.hf.classification import AutoModelForSequenceClassification, AutoModelForTokenClassification
from flodl.hf.convert import convert
from flodl.hf.encoded import Encoded
from flodl.hf.export import export, open_checkpoint
from flodl.hf.head import Head
from flodl.hf.language import AutoModelForCausalLM, AutoModelForMaskedLM
from flodl.hf.question import AutoModelForQuestionAnswering
from flodl.hf.results import Answer, Entity, Label, Token
from flodl.hf.verify import Verified, verify

__all__ = [
    "Answer",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "Encoded",
    "Entity",
    "Head",
    "Label",
    "Token",
    "Verified",
    "convert",
    "export",
    "open_checkpoint",
    "verify",
]
