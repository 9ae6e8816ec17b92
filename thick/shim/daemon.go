package shim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/thick/internal/wire"
)

// errGone: no process listens at the socket, or the connection ended before the answer.
var errGone = errors.New("the daemon is not there")

// maxAnswer limits an answer in bytes. A result has some kilobytes.
const maxAnswer = 4 << 20

// daemon asks the process behind a socket. Each request has a connection of its own.
//
// It speaks HTTP/1.0, in which an answer ends with its connection and is never in chunks.
// The client of net/http would double the program's size, and its start takes a fifth
// longer: the shim is started for every CNI call.
type daemon struct {
	socket string
	within time.Duration     // for each answer
	trace  map[string]string // fields of each request's head
}

// call sends the request of a CNI call and returns the result in the answer; nil if it has
// none. An answer with another status than 200 is a *types.Error.
func (d *daemon) call(ctx context.Context, body []byte) (*types100.Result, error) {
	status, answer, err := d.post(ctx, wire.PathCNI, body)
	if err != nil {
		return nil, err
	}
	if status != http200 {
		return nil, wire.DecodeError(status, answer)
	}
	return wire.DecodeResult(answer)
}

// Status codes of HTTP (RFC 1945, section 9).
const (
	http200 = 200 // OK
	http404 = 404 // not found
)

// post sends a request. The error is errGone if no daemon has answered it,
// os.ErrDeadlineExceeded if it has not in time, and the context's if that has ended.
func (d *daemon) post(ctx context.Context, path string, body []byte) (status int, answer []byte, err error) {
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(d.within, DefaultAnswerWithin))
	defer cancel()
	conn, err := dial(bounded, d.socket)
	if err == nil {
		status, answer, err = exchange(bounded, conn, path, d.trace, body)
	}
	switch {
	case err == nil:
		return status, answer, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case bounded.Err() != nil:
		err = fmt.Errorf("no answer within %v: %w", cmp.Or(d.within, DefaultAnswerWithin), os.ErrDeadlineExceeded)
	case isGone(err):
		err = fmt.Errorf("%w: %w", errGone, err)
	}
	return 0, nil, fmt.Errorf("%s: %w", d.socket, err)
}

// listens reports whether a process listens at the socket.
func (d *daemon) listens(ctx context.Context) bool {
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(d.within, DefaultAnswerWithin))
	defer cancel()
	conn, err := dial(bounded, d.socket)
	if err == nil {
		_ = conn.Close()
	}
	return !isGone(err)
}

// isGone reports whether an error of a connection means that no process listens, or that
// the one that did has ended or hung up.
func isGone(err error) bool {
	for _, gone := range []error{
		fs.ErrNotExist, syscall.ENOTDIR, syscall.ECONNREFUSED, // connect
		syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// exchange sends a request and reads the answer. It closes the connection.
func exchange(ctx context.Context, conn net.Conn, path string, trace map[string]string, body []byte) (status int, answer []byte, err error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	head := fmt.Sprintf("POST %s HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, len(body))
	for name, value := range trace {
		head += name + ": " + value + "\r\n"
	}
	_, werr := conn.Write(append([]byte(head+"\r\n"), body...))
	// A daemon may refuse a request before it has read the whole, so there may be an
	// answer after an error.
	status, answer, err = readAnswer(conn)
	if err != nil {
		return 0, nil, cmp.Or(werr, err)
	}
	return status, answer, nil
}

// maxTraceField is the size in bytes of the longest value that traceFields returns: three of them
// leave room in the 16 KiB of a head that package server reads.
const maxTraceField = 4 << 10

// traceFields returns the fields of a head that continue the trace of an environment
// (OpenTelemetry's specification, "Environment Variables as Context Propagation Carriers"). Values
// that no field can have are left out.
func traceFields(env []string) map[string]string {
	fields := map[string]string{}
	for _, name := range []string{"TRACEPARENT", "TRACESTATE", "BAGGAGE"} {
		for _, variable := range env {
			value, found := strings.CutPrefix(variable, name+"=")
			unfit := strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
			if found && value != "" && len(value) <= maxTraceField && !unfit {
				fields[strings.ToLower(name)] = value
				break
			}
		}
	}
	return fields
}

// readAnswer reads a response of HTTP/1.0 (RFC 1945, section 6), to the end of the
// connection. One that ends too soon is io.ErrUnexpectedEOF.
//
//	HTTP/1.0 400 Bad Request
//	Content-Type: application/json
//	Content-Length: 45
func readAnswer(r io.Reader) (status int, body []byte, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return 0, nil, err
	}
	if begin := data[:min(len(data), len(protocol))]; !strings.HasPrefix(protocol, string(begin)) {
		return 0, nil, malformed("it begins with %q", data[:min(len(data), 40)])
	}
	if len(data) > maxAnswer {
		return 0, nil, malformed("it has more than %d bytes", maxAnswer)
	}
	head, body, whole := bytes.Cut(data, []byte("\r\n\r\n"))
	if !whole {
		return 0, nil, io.ErrUnexpectedEOF
	}
	line, fields, _ := strings.Cut(string(head), "\r\n")
	_, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	number, err := strconv.ParseUint(code, 10, 16)
	if err != nil || len(code) != 3 {
		return 0, nil, malformed("its status is %q", line)
	}
	return int(number), body, checkHeader(fields, len(body))
}

// protocol begins an answer.
const protocol = "HTTP/1."

// checkHeader checks that a body is whole and in the form that it has in HTTP/1.0.
func checkHeader(fields string, length int) error {
	if fields == "" {
		return nil
	}
	for _, line := range strings.Split(fields, "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch {
		case !ok:
			return malformed("its header has the line %q", line)
		case strings.EqualFold(name, "Transfer-Encoding"):
			return malformed("its transfer encoding is %q", value)
		case !strings.EqualFold(name, "Content-Length"):
			continue
		}
		want, err := strconv.ParseUint(value, 10, 63)
		switch {
		case err != nil:
			return malformed("its length is %q", value)
		case want > maxAnswer:
			return malformed("it has %d bytes, and may have %d", want, maxAnswer)
		case uint64(length) < want:
			return io.ErrUnexpectedEOF
		case uint64(length) > want:
			return malformed("it has %d bytes after the %d announced", uint64(length)-want, want)
		}
	}
	return nil
}

func malformed(format string, args ...any) error {
	return types.NewError(types.ErrDecodingFailure, "the daemon's answer is malformed", fmt.Sprintf(format, args...))
}

// asCNI returns an error as a CNI error object. A daemon that is not there now is a reason
// to try again later.
func asCNI(err error) *types.Error {
	if said := (*types.Error)(nil); errors.As(err, &said) {
		return said
	}
	code := types.ErrInternal
	switch {
	case errors.Is(err, errGone), errors.As(err, new(*notReadyError)), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = types.ErrTryAgainLater
	case errors.Is(err, fs.ErrPermission), errors.As(err, new(*net.OpError)):
		code = types.ErrIOFailure
	}
	return types.NewError(code, err.Error(), "")
}

// unavailable returns the error of STATUS. A daemon's own error is kept.
func unavailable(err error) error {
	if err == nil || errors.As(err, new(*types.Error)) {
		return err
	}
	return types.NewError(notAvailable, "the plugin is not available", err.Error())
}
