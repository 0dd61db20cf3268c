"""What goes wrong on purpose: each module applies one kind of fault and returns its cure."""
