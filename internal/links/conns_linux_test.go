package links

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// borrowed borrows from all, and returns the descriptor.
func borrowed(t *testing.T, all *Conns, ns *netns.Handle) (*Conn, int) {
	t.Helper()
	c := must[*Conn](t)(all.Borrow(ns))
	return c, c.fd
}

// closed reports whether the descriptor no longer belongs to a socket.
func closed(fd int) bool {
	_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return errors.Is(err, unix.EBADF)
}

func wantNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestASocketIsBorrowedAgain(t *testing.T) {
	a, b := newNS(t, "a"), newNS(t, "b")
	var all Conns
	first, fd := borrowed(t, &all, a)
	second, fd2 := borrowed(t, &all, a)
	if fd == fd2 {
		t.Fatal("two have one socket")
	}
	wantNoError(t, first.Close())
	wantNoError(t, first.Close()) // returns it once
	if _, got := borrowed(t, &all, b); got == fd {
		t.Error("a socket of another namespace")
	}
	again, got := borrowed(t, &all, a)
	if got != fd {
		t.Errorf("descriptor %d, want %d again", got, fd)
	}
	if _, err := again.Link("lo"); err != nil {
		t.Error(err)
	}
	if _, got := borrowed(t, &all, a); got == fd {
		t.Error("a socket that was given back twice is used by two")
	}
	wantNoError(t, second.Close())
	wantNoError(t, again.Close())
	wantNoError(t, all.Close())
}

func TestCloseOfAllClosesEverySocket(t *testing.T) {
	ns := newNS(t, "ns")
	var all Conns
	idle, idleFD := borrowed(t, &all, ns)
	inUse, inUseFD := borrowed(t, &all, ns)
	wantNoError(t, idle.Close())
	wantNoError(t, all.Close())
	if !closed(idleFD) || closed(inUseFD) {
		t.Errorf("idle closed: %t, in use closed: %t; want true, false", closed(idleFD), closed(inUseFD))
	}
	if _, err := inUse.Link("lo"); err != nil {
		t.Errorf("the one in use: %v", err)
	}
	wantNoError(t, inUse.Close())
	if !closed(inUseFD) {
		t.Error("the one that was in use stays open")
	}
	wantNoError(t, all.Close())
}

// TestASocketWithAnAnswerUnreadIsNotBorrowedAgain: the unread part would keep
// the next list from beginning.
func TestASocketWithAnAnswerUnreadIsNotBorrowedAgain(t *testing.T) {
	ns := newNS(t, "ns")
	var all Conns
	c, fd := borrowed(t, &all, ns)
	c.buf = c.buf[:64] // too small for the first part of the answer
	if err := c.execute(linkList(), nil); !errors.Is(err, errTruncated) {
		t.Fatalf("got %v", err)
	}
	wantNoError(t, c.Close())
	if !c.broken || !closed(fd) {
		t.Errorf("broken: %t, closed: %t; want both", c.broken, closed(fd))
	}
	wantNoError(t, all.Close())
}

func TestBorrowAtOnce(t *testing.T) {
	ns := newNS(t, "ns")
	var all Conns
	var users sync.WaitGroup
	for range 8 {
		users.Add(1)
		go func() {
			defer users.Done()
			for range 50 {
				c, err := all.Borrow(ns)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := c.Link("lo"); err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	users.Wait()
	if n := len(all.idle[ns.ID()]); n < 1 || n > 8 {
		t.Errorf("%d sockets for 8 users", n)
	}
	wantNoError(t, all.Close())
}
