"""`python -m mmcached …`: the command line; the supervisor also starts its child processes by it."""

if __name__ == "__main__":
    from mmcached.cli import end_at_interrupt, main

    end_at_interrupt()
    from mmcached.wire.process.death import arm_from_environment

    # Before any heavy import: a parent killed while its child still imports must not leave an orphan.
    arm_from_environment()
    main()
