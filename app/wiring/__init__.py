"""What bootstrap puts together, part by part. Nothing else wires."""
