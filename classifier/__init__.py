"""How likely each kind of model is to answer a prompt acceptably: training, artefact, scoring."""
