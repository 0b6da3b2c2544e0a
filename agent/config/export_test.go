package config

// Parse reads the content of a file as Load does, without the file.
func Parse(content []byte) (*Config, error) {
	c := Default()
	content, err := clean("config.toml", content)
	if err != nil {
		return nil, err
	}
	f, err := parse(content)
	if err != nil {
		return nil, err
	}
	if err := f.into(c); err != nil {
		return nil, err
	}
	return c, nil
}
