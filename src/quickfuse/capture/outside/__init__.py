"""What existed before the call: reading it by its path (`reading`), with a guard (`guarding`), and changes that compiled
code makes to it afterwards (`changes`).
"""
