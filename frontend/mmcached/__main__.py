"""`python -m mmcached …`: the command line, and the way the supervisor starts its children."""

from mmcached.wire.process.death import arm_from_environment

if __name__ == "__main__":
    # Before any heavy import: a parent killed while its child still imports must not leave an orphan.
    arm_from_environment()

    from mmcached.cli import main

    main()
