package envelope

// Migrate lets tests follow migrations to a version that does not exist yet.
func Migrate(c *Codec, data []byte, want int) ([]byte, error) { return c.migrate(data, want) }
