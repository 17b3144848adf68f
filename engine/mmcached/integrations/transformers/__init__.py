"""Gives models and image processors of Transformers what any process of the host has computed before.

    features          `cached_image_features`: a vision tower runs once per image and host
    tower_code        names the code of a tower, and notices when it changes
    forms             says which form the features of an image have
    splitting         takes a call for several images apart, and puts the results together
    records           finds what is in the store, has the rest made by one process each
    image_processor   `CachedImageProcessor`: an image is processed once per host

Importing it does not import Transformers; what is handed in is Transformers' own.
"""

from mmcached.integrations.transformers.features import ImageFeatures, cached_image_features
from mmcached.integrations.transformers.image_processor import CachedImageProcessor

__all__ = ["CachedImageProcessor", "ImageFeatures", "cached_image_features"]
