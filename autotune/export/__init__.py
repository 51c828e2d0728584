"""The winner as a file that other tools take."""
