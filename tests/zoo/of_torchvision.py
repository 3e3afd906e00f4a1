"""Models of torchvision: classification, segmentation, detection, video and optical flow."""

from __future__ import annotations

import sys
from typing import Any

import torch

from quickfuse.bench.zoo import vision_models
from zoo.measure import Case

_CLASSIFICATION = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 "
    "mnasnet1_0 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_400mf regnet_y_400mf regnet_y_800mf "
    "resnet18 resnet34 resnet50 resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 squeezenet1_0 squeezenet1_1 "
    "swin_t swin_v2_t vgg11 vgg11_bn vit_b_32 wide_resnet50_2 "
).split()
_SEGMENTATION = "deeplabv3_mobilenet_v3_large deeplabv3_resnet50 fcn_resnet50 lraspp_mobilenet_v3_large".split()
_DETECTION = (
    "fasterrcnn_mobilenet_v3_large_320_fpn fasterrcnn_resnet50_fpn fcos_resnet50_fpn keypointrcnn_resnet50_fpn "
    "maskrcnn_resnet50_fpn retinanet_resnet50_fpn ssd300_vgg16 ssdlite320_mobilenet_v3_large"
).split()
_VIDEO = "mc3_18 mvit_v2_s r2plus1d_18 r3d_18 s3d swin3d_t".split()
_FLOW = ["raft_small"]

#: Pictures of this size where a model does not take smaller ones.
_SIZES = {"inception_v3": 299, "maxvit_t": 224, "vit_b_32": 224, "googlenet": 64, "alexnet": 96, "swin_v2_t": 64}


def names() -> list[str]:
    return [*_CLASSIFICATION, *_SEGMENTATION, *_DETECTION, *_VIDEO, *_FLOW]


def build(name: str) -> Case:
    models = vision_models()
    if name in _DETECTION:
        return _detection(models, name)
    if name in _SEGMENTATION:
        model = getattr(models.segmentation, name)(weights=None, weights_backbone=None, num_classes=5)
        return Case(model, (torch.randn(2, 3, 64, 64),))
    if name in _FLOW:
        model = models.optical_flow.raft_small(weights=None)
        return Case(model, (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128)), {"num_flow_updates": 3})
    if name in _VIDEO:
        size = 224 if name in ("mvit_v2_s", "s3d") else 64
        frames = 16 if name in ("mvit_v2_s", "s3d") else 8
        return Case(getattr(models.video, name)(weights=None, num_classes=10), (torch.randn(1, 3, frames, size, size),))
    settings: dict[str, Any] = {"num_classes": 10}
    if name in ("googlenet", "inception_v3"):
        settings |= {"init_weights": False, "aux_logits": True}
    return Case(getattr(models, name)(weights=None, **settings), (torch.randn(2, 3, *[_SIZES.get(name, 64)] * 2),))


def _detection(models: Any, name: str) -> Case:
    _declare_nms()
    settings: dict[str, Any] = {"weights": None, "weights_backbone": None, "num_classes": 4}
    if "320" not in name and "300" not in name:
        settings |= {"min_size": 64, "max_size": 96}
    if "rcnn" in name:  # few regions: what is done with them is in Python here
        settings |= dict.fromkeys(("rpn_pre_nms_top_n_train", "rpn_pre_nms_top_n_test"), 40) | {"box_detections_per_img": 5}
        settings |= dict.fromkeys(("rpn_post_nms_top_n_train", "rpn_post_nms_top_n_test"), 20)
        settings["box_batch_size_per_image"] = 16
    else:
        settings |= {"topk_candidates": 40, "detections_per_img": 5}
    model = getattr(models.detection, name)(**settings)
    targets = []
    for _ in range(2):
        target = {"boxes": torch.tensor([[4.0, 4.0, 30.0, 40.0], [20.0, 10.0, 60.0, 50.0]]), "labels": torch.tensor([1, 2])}
        if "mask" in name:
            target["masks"] = torch.randint(2, (2, 64, 64), dtype=torch.uint8)
        if "keypoint" in name:
            target["labels"] = torch.tensor([1, 1])
            points = torch.tensor([10.0, 10.0, 1.0]) + torch.arange(17)[:, None] * torch.tensor([1.0, 1.0, 0.0])
            target["keypoints"] = points.expand(2, 17, 3).clone()
        targets.append(target)
    return Case(model, ([torch.randn(3, 64, 64) for _ in range(2)], targets))


_kernels: list[torch.library.Library] = []


def _declare_nms() -> None:
    """Non-maximum suppression in Python, where torchvision's compiled operators do not fit the installed PyTorch."""
    import torchvision

    if torchvision.extension._has_ops() or _kernels:
        return
    library = torch.library.Library("torchvision", "IMPL")
    library.impl("nms", _nms, "CPU")
    _kernels.append(library)
    torchvision.ops.boxes._assert_has_ops = lambda: None
    roi_align = torchvision.ops.roi_align
    sources = sys.modules[roi_align.__module__]
    sources._roi_align = sources._roi_align.__wrapped__  # type: ignore[attr-defined]  # torchvision compiles it otherwise


def _nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left = scores.argsort(descending=True, stable=True)
    kept = []
    while left.numel():
        best, left = left[0], left[1:]
        kept.append(best)
        corner = torch.minimum(boxes[left, 2:], boxes[best, 2:]) - torch.maximum(boxes[left, :2], boxes[best, :2])
        shared = corner.clamp(min=0).prod(1)
        left = left[shared / (areas[left] + areas[best] - shared) <= iou_threshold]
    return torch.stack(kept) if kept else scores.new_zeros(0, dtype=torch.int64)
