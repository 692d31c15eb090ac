//go:build !linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// disk is not possible here.
type disk struct{ mount string }

func newDisk(context.Context, string, *rand.Rand) (*disk, error) {
	return nil, errors.New("only Linux can do it")
}

func (d *disk) close() error                            { return nil }
func (d *disk) cut(context.Context, *hub, func()) error { return nil }
func (d *disk) hold()                                   {}
func (d *disk) fill(func()) error                       { return nil }

func (d *disk) stall(func(time.Duration) bool, time.Duration) error { return nil }

// canLimit says that the limits of a running process can be changed.
const canLimit = false

func (h *hub) limitDescriptors(func()) error { return nil }

func (h *hub) withoutMemory(context.Context, func()) error { return nil }
