//go:build !linux

package delqueue

import "errors"

func sinceBoot() (int64, error) { return 0, errors.ErrUnsupported }

func private(string) error { return errors.ErrUnsupported }
