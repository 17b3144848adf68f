"""Files and file locks of one host.

locks       byte locks that the kernel drops when their holder dies
lock_file   a file whose lock proves that its holder lives
own_file    opens only regular files of this user, never a link or a pipe
"""
