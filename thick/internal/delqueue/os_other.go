//go:build !linux

package delqueue

import (
	"errors"
	"os"
)

func sinceBoot() (int64, error) { return 0, errors.ErrUnsupported }

func private(string) error { return errors.ErrUnsupported }

func createLocked(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func removeUnlocked(string) error { return errors.ErrUnsupported }
