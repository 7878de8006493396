"""``python -m rollway.integrations.skyrl key.path=value …``: trains with SkyRL on external trajectories."""

from rollway.integrations.skyrl.entrypoint import main

main()
