"""The frontier of one process.

:mod:`.frontier` has the transitions; :mod:`.changes` what is to be written of them,
:mod:`.start_claims` which start requests earlier runs accepted, :mod:`.suspects` which requests may
have killed the process.
"""
