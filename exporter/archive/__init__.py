"""The archive: every result, for good. A folder of JSON Lines with an index beside it, and S3 behind it where that is wanted."""
