"""Encoders as actors on a Ray cluster. `mmcached ray up` starts them; a worker asks them as `encoder.ray_address` says.

    encoder_actor   one actor: an encoder, and whoever asks it

Ray is imported by whoever starts an actor, not here.
"""
