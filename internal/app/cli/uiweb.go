package cli

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
)

// webFlags are the flags of ui for the hub's page.
type webFlags struct {
	page     bool
	noOpen   bool
	viewOnly bool
}

// showPage prints a new link to the hub's page, and opens it in the browser.
func (a *app) showPage(ctx context.Context, noStart bool, f webFlags) error {
	c, err := a.pageHub(ctx, noStart)
	if err != nil {
		return err
	}
	defer c.Close()
	return a.openPage(ctx, c, f)
}

// openPage prints a new link to the page of a hub, and opens it in the browser.
func (a *app) openPage(ctx context.Context, c *client.Client, f webFlags) error {
	link, err := c.PageLink(ctx, dialect.PageLinkParams{ViewOnly: f.viewOnly})
	if err != nil {
		return err
	}
	if a.json() {
		writeJSON(a.stdout, link)
		return nil
	}
	fmt.Fprintln(a.stdout, plain(link.URL))
	if f.noOpen {
		return nil
	}
	if name, args := a.browser(runtime.GOOS, link.URL); name == "" || !start(name, args) {
		fmt.Fprintln(a.stderr, "There is no browser here: open the link within a minute.")
	}
	return nil
}

func (a *app) pageHub(ctx context.Context, noStart bool) (*client.Client, error) {
	if !noStart {
		return a.connectOrStart(ctx, false)
	}
	cfg, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	return a.dial(ctx, cfg)
}

// browser returns the command that opens a link, "" where there is no screen. The link is in the command's arguments,
// which other users can see: the hub does not let them open it.
func (a *app) browser(system, link string) (name string, args []string) {
	if own := a.getenv("BROWSER"); own != "" && !strings.ContainsAny(own, " :%") {
		return own, []string{link}
	}
	switch system {
	case "darwin":
		return "open", []string{link}
	case "windows":
		return "rundll32", []string{"url.dll,FileProtocolHandler", link}
	}
	if a.getenv("DISPLAY") == "" && a.getenv("WAYLAND_DISPLAY") == "" {
		return "", nil
	}
	return "xdg-open", []string{link}
}

// start starts a program that outlives this one.
func start(name string, args []string) bool {
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		return false
	}
	return cmd.Process.Release() == nil
}
