package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/tools/docs/contract"
)

// contractHead begins the files of the contracts.
const contractHead = `# What other programs rely on: %s. See docs/versions.md.
# "go run ./tools/docs" adds lines from the code. A line without "requires" never disappears within a major version, and one with it
# appears only with what is new. What must break is changed here by hand, and in CHANGELOG.md.

`

// contractFile returns the committed file of a contract with what is new in the code, and an error that names what breaks it.
func contractFile(path, about string, read func(contract.Facts) error) func() ([]byte, error) {
	return func() ([]byte, error) {
		code := contract.Facts{}
		if err := read(code); err != nil {
			return nil, err
		}
		committed, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		all, err := contract.Extend(path, contract.Parse(string(unix(committed))), code)
		return []byte(all.Text(fmt.Sprintf(contractHead, about))), err
	}
}

const cliPath = modulePath + "internal/app/cli"

// commandContract has the commands, their flags, what they print with --format json, and the codes of their failures.
func commandContract(f contract.Facts) error {
	code, err := contract.Load(cliPath)
	if err != nil {
		return err
	}
	shapes := &contract.Shapes{Facts: f, Prefix: "out ", Tag: "json"}
	printed := code.Commands(cliPath)
	for path, all := range printed {
		for _, p := range all {
			if p.Keys == nil {
				f.Add("command %q prints %s", path, shapes.Of(p.Type))
			}
			for key, of := range p.Keys {
				f.Add("command %q prints an object.%s: %s", path, key, shapes.Of(of))
			}
		}
	}
	code.Root(cliPath, "failure", shapes)
	code.ExitCodes(cliPath, "exit", f)
	code.FailureCodes(cliPath, "failure", "Kind", "Exit", f)
	return usageContract(cli.Command("parley"), printed, f)
}

// withoutJSON are the commands that print no value of their own: texts for people, and what programs read in another form.
var withoutJSON = []string{"mcp", "hook", "network admit"}

// usageContract adds the commands and flags that the help shows. It fails for a command whose JSON is not known.
func usageContract(c *cobra.Command, printed map[string][]contract.Printed, f contract.Facts) error {
	var errs []error
	_, path, _ := strings.Cut(c.CommandPath(), " ")
	if c.Runnable() && !c.HasSubCommands() && printed[path] == nil && !slices.Contains(withoutJSON, path) {
		errs = append(errs, fmt.Errorf("what %q prints with --format json is not known to tools/docs/contract: print it with app.print, or add it to withoutJSON", path))
	}
	f.Add("command %q", path)
	add := func(flag *pflag.Flag) {
		if !flag.Hidden && flag.Name != "help" {
			f.Add("command %q takes --%s: %s", path, flag.Name, cmp.Or(flag.Value.Type(), "string"))
		}
		if !flag.Hidden && flag.Shorthand != "" && flag.Name != "help" {
			f.Add("command %q takes -%s: %s", path, flag.Shorthand, flag.Name)
		}
	}
	if !c.HasParent() {
		c.PersistentFlags().VisitAll(add)
	}
	c.LocalNonPersistentFlags().VisitAll(add)
	for _, below := range c.Commands() {
		if !below.Hidden && below.Name() != "help" && below.Name() != "completion" {
			errs = append(errs, usageContract(below, printed, f))
		}
	}
	return errors.Join(errs...)
}

// interfaceContract has what a description of an interface says.
func interfaceContract(describe func() ([]byte, error)) func(contract.Facts) error {
	return func(f contract.Facts) error {
		text, err := describe()
		if err != nil {
			return err
		}
		return contract.Description(text, f)
	}
}

// toolContract has the arguments and results of the MCP tools.
func toolContract(f contract.Facts) error {
	paths := []string{modulePath + "internal/mcp/server", modulePath + "internal/mcp/delegation"}
	code, err := contract.Load(paths...)
	if err != nil {
		return err
	}
	for _, p := range paths {
		code.Tools(p, f)
	}
	return nil
}

// configurationContract has the keys of the hub's configuration and of .mcp-config.json, and the environment variables.
func configurationContract(f contract.Facts) error {
	const path = modulePath + "internal/config"
	code, err := contract.Load(path)
	if err != nil {
		return err
	}
	code.Root(path, "Config", &contract.Shapes{Facts: f, Prefix: "config.yaml ", Tag: "yaml", Input: true})
	for _, v := range config.Variables {
		f.Add("variable %s sets %s", v.Name, v.Key)
	}
	schema, err := mcpSchema()
	if err != nil {
		return err
	}
	return contract.Schema(".mcp-config.json", schema, true, f)
}

// wirePackages have the types of what hubs and agents of several versions send each other.
var wirePackages = []string{
	"agent", "channel", "envelope", "negotiation", "swarm", "internal/agentnet/assignment", "internal/agentnet/claims", "internal/agentnet/mail", "internal/agentnet/registry",
	"internal/agentnet/work", "internal/chat",
}

// wireContract has what hubs and agents send each other.
func wireContract(f contract.Facts) error {
	var paths []string
	for _, p := range wirePackages {
		paths = append(paths, modulePath+p)
	}
	code, err := contract.Load(paths...)
	if err != nil {
		return err
	}
	shapes := &contract.Shapes{Facts: f, Tag: "json"}
	for _, p := range paths {
		code.Structs(p, shapes)
	}
	for _, name := range []string{"agent-card", "agent-registry", "channel-message", "envelope"} {
		text, err := os.ReadFile("schema/" + name + ".schema.json")
		if err == nil {
			err = contract.Schema(name+".schema.json", bytes.TrimSpace(text), false, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
