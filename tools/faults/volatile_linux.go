package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// volatile is a file for a loop device with the cache of a disk: what is written is in the cache only, and on the disk after a
// flush, which takes time. A power cut loses the cache, of which a disk may have written any part meanwhile. It is the only file of a file system in user
// space (FUSE).
type volatile struct {
	dir  string   // where the file system is mounted
	disk *os.File // what survives a power cut
	fuse *os.File
	done chan struct{}

	mu      sync.Mutex
	random  *rand.Rand
	cache   map[int64][]byte // by number of the block
	flushes []func()         // those that wait until the power was cut
	held    bool             // nothing is flushed until the power is cut
	off     bool             // the power: what is written now is lost
	drained bool             // nobody waits any more for an answer that must not come
}

// blockSize is what a disk writes at once; the rest of a larger write may be lost in a power cut.
const blockSize = 4096

// maxFlush bounds the time of a flush.
const maxFlush = 10 * time.Millisecond

// volatileName is the file's name.
const volatileName = "disk"

// newVolatile mounts the file at dir, which must be there. The image has what is on the disk, and a size of whole blocks.
func newVolatile(dir, image string, random *rand.Rand) (v *volatile, err error) {
	v = &volatile{dir: dir, random: random, cache: map[int64][]byte{}, done: make(chan struct{})}
	if v.disk, err = os.OpenFile(image, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("/dev/fuse: %w", err), v.disk.Close())
	}
	v.fuse = os.NewFile(uintptr(fd), "/dev/fuse")
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, os.Getuid(), os.Getgid())
	if err := unix.Mount("faults", dir, "fuse.faults", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount: %w", err), v.fuse.Close(), v.disk.Close())
	}
	go v.serve(fd)
	return v, nil
}

// path returns where the file is.
func (v *volatile) path() string { return filepath.Join(v.dir, volatileName) }

// close ends the file system, which nobody uses any more.
func (v *volatile) close() error {
	err := unix.Unmount(v.dir, 0)
	if err != nil {
		err = errors.Join(fmt.Errorf("unmount: %w", err), unix.Unmount(v.dir, unix.MNT_DETACH|unix.MNT_FORCE))
	}
	<-v.done
	return errors.Join(err, v.fuse.Close(), v.disk.Close())
}

// hold keeps flushes from coming to an end, until the power is cut.
func (v *volatile) hold() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held = true
}

// cut cuts the power: nothing that was not flushed before is on the disk, but what the disk has written of its cache by itself. Flushes are not
// answered until drain.
func (v *volatile) cut() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.off = true
	if v.random.IntN(2) == 0 { // some of it, in any order
		for block, data := range v.cache {
			if v.random.IntN(2) == 0 {
				if _, err := v.disk.WriteAt(data, block*blockSize); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// drain answers the flushes that wait: nobody is there any more who could tell of them.
func (v *volatile) drain() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, answer := range v.flushes {
		answer()
	}
	v.flushes, v.drained = nil, true
}

// restore switches the power on. The file was closed, and must be opened again.
func (v *volatile) restore() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held, v.off, v.drained = false, false, false
	clear(v.cache)
}

// read reads from the cache, and else from the disk.
func (v *volatile) read(p []byte, at int64) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, err := v.disk.ReadAt(p, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	for block := at / blockSize; block*blockSize < at+int64(n); block++ {
		if data := v.cache[block]; data != nil {
			begin := block * blockSize
			if begin < at {
				copy(p[:n], data[at-begin:])
			} else {
				copy(p[begin-at:n], data)
			}
		}
	}
	return n, nil
}

// write writes to the cache.
func (v *volatile) write(p []byte, at int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for len(p) > 0 {
		block, from := at/blockSize, at%blockSize
		data := make([]byte, blockSize) // a flush may have the former one
		if cached := v.cache[block]; cached != nil {
			copy(data, cached)
		} else if _, err := v.disk.ReadAt(data, block*blockSize); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		n := copy(data[from:], p)
		v.cache[block] = data
		p, at = p[n:], at+int64(n)
	}
	return nil
}

// flush writes to the disk, after a while, what is in the cache now, and calls answer then.
func (v *volatile) flush(answer func(error)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	written := make(map[int64][]byte, len(v.cache))
	for block, data := range v.cache {
		written[block] = data
	}
	time.AfterFunc(time.Duration(v.random.Int64N(int64(maxFlush))), func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		switch {
		case v.drained:
			answer(nil)
		case v.off || v.held:
			v.flushes = append(v.flushes, func() { answer(nil) })
		default:
			answer(v.settle(written))
		}
	})
}

// settle writes blocks to the disk. mu is held.
func (v *volatile) settle(written map[int64][]byte) error {
	for block, data := range written {
		if _, err := v.disk.WriteAt(data, block*blockSize); err != nil {
			return err
		}
		if now := v.cache[block]; now != nil && &now[0] == &data[0] {
			delete(v.cache, block)
		}
	}
	return nil
}

// The requests of FUSE that are served, as linux/fuse.h has them.
const (
	fuseLookup      = 1
	fuseForget      = 2
	fuseGetAttr     = 3
	fuseOpen        = 14
	fuseRead        = 15
	fuseWrite       = 16
	fuseStatFS      = 17
	fuseRelease     = 18
	fuseFSync       = 20
	fuseFlush       = 25
	fuseInit        = 26
	fuseInterrupt   = 36
	fuseDestroy     = 38
	fuseBatchForget = 42
)

const (
	fuseHeader   = 40
	maxFuseWrite = 128 << 10
	fileNode     = 2
)

// serve answers the kernel until the file system is unmounted.
func (v *volatile) serve(fd int) {
	defer close(v.done)
	request := make([]byte, maxFuseWrite+1<<12)
	for {
		n, err := unix.Read(fd, request)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil || n < fuseHeader:
			return
		}
		v.handle(fd, request[:n])
	}
}

// handle answers a request.
func (v *volatile) handle(fd int, request []byte) {
	order := binary.NativeEndian
	op, id, node := order.Uint32(request[4:]), order.Uint64(request[8:]), order.Uint64(request[16:])
	in := request[fuseHeader:]
	answer := func(data []byte, err error) { answerFuse(fd, id, data, err) }
	switch op {
	case fuseForget, fuseBatchForget, fuseInterrupt:
	case fuseInit:
		answer(fuseInitAnswer(in), nil)
	case fuseLookup:
		if string(in) != volatileName+"\x00" {
			answer(nil, unix.ENOENT)
			return
		}
		data := make([]byte, 40)
		order.PutUint64(data, fileNode)
		answer(append(data, v.attributes(fileNode)...), nil)
	case fuseGetAttr:
		answer(append(make([]byte, 16), v.attributes(node)...), nil)
	case fuseOpen:
		answer(make([]byte, 16), nil) // what the kernel has cached of the file is dropped
	case fuseRead:
		data := make([]byte, order.Uint32(in[16:]))
		n, err := v.read(data, int64(order.Uint64(in[8:])))
		answer(data[:n], err)
	case fuseWrite:
		data := make([]byte, 8)
		size := order.Uint32(in[16:])
		order.PutUint32(data, size)
		answer(data, v.write(in[40:40+size], int64(order.Uint64(in[8:]))))
	case fuseFSync:
		v.flush(func(err error) { answer(nil, err) })
	case fuseStatFS:
		answer(make([]byte, 80), nil)
	case fuseRelease, fuseFlush, fuseDestroy:
		answer(nil, nil)
	default:
		answer(nil, unix.ENOSYS)
	}
}

// fuseInitAnswer accepts the protocol's version that is described here.
func fuseInitAnswer(in []byte) []byte {
	order, data := binary.NativeEndian, make([]byte, 64)
	order.PutUint32(data, 7)
	order.PutUint32(data[4:], 31)
	order.PutUint32(data[8:], order.Uint32(in[8:])) // read ahead
	order.PutUint16(data[16:], 64)                  // requests in the background
	order.PutUint16(data[18:], 48)
	order.PutUint32(data[20:], maxFuseWrite)
	order.PutUint32(data[24:], 1)
	return data
}

// attributes returns those of a node.
func (v *volatile) attributes(node uint64) []byte {
	order, data := binary.NativeEndian, make([]byte, 88)
	order.PutUint64(data, node)
	mode, links := uint32(unix.S_IFDIR|0o700), uint32(2)
	if node == fileNode {
		mode, links = unix.S_IFREG|0o600, 1
		if info, err := v.disk.Stat(); err == nil {
			order.PutUint64(data[8:], uint64(info.Size()))
			order.PutUint64(data[16:], uint64(info.Size())/512)
		}
	}
	order.PutUint32(data[60:], mode)
	order.PutUint32(data[64:], links)
	order.PutUint32(data[80:], blockSize)
	return data
}

// answerFuse answers a request. The kernel may not want the answer any more.
func answerFuse(fd int, id uint64, data []byte, err error) {
	header, order := make([]byte, 16, 16+len(data)), binary.NativeEndian
	if err != nil {
		data = nil
		number := unix.EIO
		errors.As(err, &number)
		order.PutUint32(header[4:], uint32(-int32(number)))
	}
	order.PutUint32(header, uint32(16+len(data)))
	order.PutUint64(header[8:], id)
	_, _ = unix.Write(fd, append(header, data...))
}
