"""The demonstration behind `mmcached demo`: real photographs, several users, all caches on and then off, one proof."""
