"""What models read: texts cut into windows, images, and inputs that are ready, in batches and shares."""
