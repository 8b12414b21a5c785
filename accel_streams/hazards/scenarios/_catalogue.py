"""The hazards H1 to H16 and H18: the program that shows each, and what its report looks like."""

from __future__ import annotations

from accel_streams.hazards.scenarios._scenario import Expected, Scenario

__all__ = ["HAZARDS"]

_RAW = frozenset({"read-after-write"})
_WAR = frozenset({"write-after-read"})
_WAW = frozenset({"write-after-write"})
_FREE = frozenset({"use-after-free"})

_BUCKET = r"ipg_buffer|setup_buckets|backward_prologue|backward$"
_HOOK = r"reduce_independent_p_g_buckets_and_remove_grads"
_BACKWARD = r"Backward0"
_TO_HOST = r"async_\w+|copy_gradients_to_cpu|set_norm_for_param_grad_in_gpu"

# float32 where hooks run on several streams: up to 0.16.5 DeepSpeed changes the dtype of a bfloat16
# parameter for a moment, and with that makes its gradient's node, and so its hook's stream, anew.
HAZARDS: dict[str, Scenario] = {
    scenario.id: scenario
    for scenario in (
        Scenario(
            id="H1",
            title="a bucket is read before a second stream has written it, with overlap_comm",
            stages=(1, 2),
            ranks=1,
            needs="multi",
            program="train",
            case={"stage": 2, "dtype": "fp32"},
            expects=(Expected(_RAW, _BUCKET, first=_HOOK),),
            until="0.19.2",
        ),
        Scenario(
            id="H2",
            title="a bucket is read before a second stream has written it, or overwritten while "
            "it is read, without overlap_comm",
            stages=(2,),
            ranks=1,
            needs="multi",
            program="train",
            case={"stage": 2, "dtype": "fp32", "overlap": False},
            expects=(
                Expected(_RAW, _BUCKET, first=_HOOK),
                Expected(_WAR, _BUCKET, second=_HOOK),
            ),
        ),
        Scenario(
            id="H3",
            title="one of two buckets is overwritten by a second stream while it is reduced",
            stages=(1, 2),
            ranks=1,
            needs="multi",
            program="train",
            case={"stage": 2, "dtype": "fp32"},
            expects=(Expected(_WAR, _BUCKET, second=_HOOK),),
        ),
        Scenario(
            id="H4",
            title="a gradient larger than a bucket is reduced before it is computed",
            stages=(1, 2),
            ranks=1,
            needs="multi",
            program="train",
            case={"stage": 2, "dtype": "fp32", "oversized": True},
            expects=(Expected(_RAW, r"MmBackward0", first=_BACKWARD),),
            since="0.19.3",
        ),
        Scenario(
            id="H5",
            title="gradients outside buckets are reduced before they are computed "
            "(contiguous_gradients off, overlap_comm off)",
            stages=(2,),
            ranks=1,
            needs="multi",
            program="train",
            case={"stage": 2, "dtype": "fp32", "overlap": False, "contiguous": False},
            expects=(
                Expected(_RAW, _BACKWARD, first=_BACKWARD),
                Expected(_WAW, _BACKWARD, first=_BACKWARD),
            ),
        ),
        Scenario(
            id="H6",
            title="a gradient larger than a bucket is freed while it is reduced",
            stages=(2,),
            ranks=1,
            needs="single",
            program="train",
            case={
                "stage": 2,
                "producers": "one",
                "oversized": True,
                "reduce_scatter": False,
                "accumulate": "bf16",
            },
            expects=(Expected(_FREE, r"MmBackward0"),),
        ),
        Scenario(
            id="H7",
            title="a bucket's memory is written by another stream than the one that allocated it, "
            "with no order to its earlier use",
            stages=(1, 2),
            ranks=1,
            needs="multi",
            program="train",
            case={"stage": 2, "dtype": "fp32", "overlap": False},
            expects=(Expected(_WAW, _BUCKET, first=r" alloc$"),),
            digest=False,
        ),
        Scenario(
            id="H8",
            title="ZenFlow reduces a bucket before a second stream has written it",
            stages=(2,),
            ranks=1,
            needs="multi",
            program="train",
            case={"stage": 2, "zenflow": True, "offload": "optimizer", "dtype": "bf16"},
            expects=(Expected(_RAW, _BUCKET, first=_HOOK),),
            digest=False,
            since="0.17.5",
        ),
        Scenario(
            id="H9",
            title="ZeRO-3's check for overflow orders the default stream alone (fp16)",
            stages=(3,),
            ranks=1,
            needs="single",
            program="train",
            case={"stage": 3, "dtype": "fp16", "producers": "user"},
            expects=(Expected(_RAW, r"in has_overflow", first=r"has_overflow"),),
            digest=False,
        ),
        Scenario(
            id="H10",
            title="ZeRO-3 gathers parameters before the optimizer has written them",
            stages=(3,),
            ranks=2,
            needs="single",
            program="train",
            case={"stage": 3, "producers": "one", "persistence": 0, "steps": 5},
            expects=(Expected(_RAW, first=r"_reassign_or_swap_out_partitioned_parameters"),),
        ),
        Scenario(
            id="H11",
            title="ZeRO-3 reduces gradients before they are computed: it waits for the default "
            "stream, not for the current one",
            stages=(3,),
            ranks=1,
            needs="single",
            program="train",
            case={"stage": 3, "producers": "one", "whole": True},
            expects=(Expected(_RAW, _BACKWARD, first=_BACKWARD, second=r"__add_grad_to_ipg"),),
            until="0.18.7",
        ),
        Scenario(
            id="H12",
            title="gradients are copied to the host before they are in the bucket "
            "(offload_optimizer)",
            stages=(1, 2),
            ranks=1,
            needs="multi",
            program="train",
            case={"stage": 2, "dtype": "fp32", "offload": "optimizer", "overlap": False},
            expects=(Expected(_RAW, _BUCKET, first=_HOOK, second=_TO_HOST),),
            until="0.19.7",
        ),
        Scenario(
            id="H13",
            title="gradients outside buckets are freed while what was reduced is copied back",
            stages=(1, 2),
            ranks=1,
            needs="single",
            program="train",
            case={"stage": 2, "producers": "one", "oversized": True},
            expects=(Expected(_FREE, _BACKWARD, first=r"allreduce_and_copy"),),
            until="0.18.9",
        ),
        Scenario(
            id="H14",
            title="one of two buckets is overwritten by the stream that filled it",
            stages=(1, 2),
            ranks=1,
            needs="single",
            program="train",
            case={"stage": 2, "producers": "one"},
            expects=(Expected(_WAR, _BUCKET, second=_HOOK),),
            since="0.17.2",
            until="0.17.4",
        ),
        Scenario(
            id="H15",
            title="ZeRO-3 frees a gathered parameter that another stream still uses: a layer "
            "applied under two streams",
            stages=(3,),
            ranks=2,
            needs="multi",
            program="train",
            case={
                "stage": 3,
                "shared": True,
                "persistence": 0,
                "reuse_distance": 272,
                "steps": 4,
            },
            expects=(Expected(_FREE, first=r"forward|Backward0|linear"),),
        ),
        Scenario(
            id="H16",
            title="sequence parallelism (Ulysses) waits for the default stream, not for the one it "
            "computes on",
            stages=(),
            ranks=1,
            needs="single",
            program="sequence",
            case={},
            expects=(Expected(_RAW, r"in _project", first=r"_project"),),
        ),
        Scenario(
            id="H18",
            title="ZeRO-3 frees a gradient of which this rank keeps no part while it is reduced "
            "(contiguous_gradients off)",
            stages=(3,),
            ranks=2,
            needs="single",
            program="train",
            case={"stage": 3, "scalar": True, "contiguous": False, "producers": "one", "steps": 4},
            expects=(Expected(_FREE, r"Mul"),),
        ),
    )
}
