"""The commands of `fedlit` other than `fit`, one thin file each."""
