"""Encoders as actors on a Ray cluster. `mmcached ray up` starts them; workers call them by `encoder.ray_address`.

    encoder_actor   an actor with one encoder

Ray is imported where an actor is started, not here.
"""
