package multus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Field numbers of a pod in the protobuf form of Kubernetes: the envelope
// (runtime.Unknown), the pod, its metadata, and an entry of the annotations.
const (
	envelopeRaw         = 2
	podMetadata         = 1
	metadataAnnotations = 12
	entryKey            = 1
	entryValue          = 2
)

var errProtobuf = errors.New("malformed protobuf")

// podAnnotations returns the annotations of a pod in the protobuf form, in which the
// daemon writes. The daemon reads JSON as well, but has no choice of writing it.
func podAnnotations(body []byte) (map[string]string, error) {
	envelope, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return nil, fmt.Errorf("%w: no envelope: %.20q", errProtobuf, body)
	}
	annotations := map[string]string{}
	err := within(envelope, []int{envelopeRaw, podMetadata, metadataAnnotations}, func(entry []byte) error {
		var key, value []byte
		err := errors.Join(
			within(entry, []int{entryKey}, func(b []byte) error { key = b; return nil }),
			within(entry, []int{entryValue}, func(b []byte) error { value = b; return nil }))
		annotations[string(key)] = string(value)
		return err
	})
	return annotations, err
}

// within calls fn with each field at the path of field numbers, all of which have a
// length: messages, strings and bytes.
func within(message []byte, path []int, fn func([]byte) error) error {
	if len(path) == 0 {
		return fn(message)
	}
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return errProtobuf
		}
		message = message[n:]
		value, rest, err := field(message, tag&7)
		if err != nil {
			return err
		}
		message = rest
		if tag>>3 == uint64(path[0]) {
			if err := within(value, path[1:], fn); err != nil {
				return err
			}
		}
	}
	return nil
}

// field splits the value of a field from the rest, by its wire type.
func field(b []byte, wireType uint64) (value, rest []byte, err error) {
	length := 0
	switch wireType {
	case 0: // a number
		_, length = binary.Uvarint(b)
	case 1:
		length = 8
	case 2: // bytes
		n, prefix := binary.Uvarint(b)
		if prefix <= 0 || n > uint64(len(b)-prefix) {
			return nil, nil, errProtobuf
		}
		b, length = b[prefix:], int(n)
	case 5:
		length = 4
	default:
		return nil, nil, fmt.Errorf("%w: wire type %d", errProtobuf, wireType)
	}
	if length < 0 || length > len(b) || length == 0 && wireType == 0 {
		return nil, nil, errProtobuf
	}
	return b[:length], b[length:], nil
}
