"""Shares image features and processed images among all processes of a host that use Transformers.

    features          `cached_image_features`: a vision tower runs once per image and host
    tower_names       names a tower by weights and code, and reads the weights again
    tower_code        a digest of a tower's code, and detection of changes; `function_code`: of one function
    forms             the expected form of the features of an image
    splitting         splits a call for several images, and joins the results
    records           finds records in the store, and has each missing one made by one process
    image_processor   `CachedImageProcessor`: an image is processed once per host

Importing it does not import Transformers; models and processors are handed in.
"""

from mmcached.integrations.transformers.features import ImageFeatures, cached_image_features
from mmcached.integrations.transformers.image_processor import CachedImageProcessor

__all__ = ["CachedImageProcessor", "ImageFeatures", "cached_image_features"]
