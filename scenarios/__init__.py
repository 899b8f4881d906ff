"""Describes deployments: catalogues of hardware, models and acceptance, scenario files, and how names resolve."""
