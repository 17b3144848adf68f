"""Lets LMDeploy's TurboMind engine share image features of models whose vision part runs in Python.

    plugin     installs the adapter in a process, before LMDeploy makes its `ImageEncoder`
    features   the store behind one `ImageEncoder`
    messages   the preprocessed items in LMDeploy's messages, and their features
    tower      what is in a name of features: weights, settings, device; the form of a feature

LMDeploy loads no plugins, so the user calls `install`. Nothing of LMDeploy is imported by that.
"""

from mmcached.integrations.lmdeploy.plugin import install

__all__ = ["install"]
