//go:build !linux

package sandbox

func enter(string) error { return ErrNotSupported }

func start([]string, bool) (int, error) { return 1, ErrNotSupported }

func mountNS() (string, error) { return "", ErrNotSupported }

func runShards(int, []string) (int, error) { return 1, ErrNotSupported }
