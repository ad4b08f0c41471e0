"""What a run learns to do, as its data set says: labels of images or of their pixels."""
