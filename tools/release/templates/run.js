"use strict";
// Runs the program of this machine's package under a name: parley, a2a-hub or nats-mcp-server.
const { spawn } = require("node:child_process");
const { constants } = require("node:os");

function program() {
  const name = `@parleyhub/parley-${process.platform}-${process.arch}`;
  const file = process.platform === "win32" ? "parley.exe" : "parley";
  try {
    return require.resolve(`${name}/bin/${file}`);
  } catch {
    console.error(
      `parley: the package ${name} is not installed. Either Parley has no program for this system, or npm was told to leave\n` +
        "out optional dependencies: install again without --omit=optional and --no-optional.");
    process.exit(1);
  }
}

module.exports = (name) => {
  const child = spawn(program(), process.argv.slice(2), { stdio: "inherit", argv0: name });
  for (const signal of ["SIGTERM", "SIGHUP", "SIGINT"]) process.on(signal, () => child.kill(signal));
  child.on("error", (err) => {
    console.error(`parley: ${err.message}`);
    process.exit(1);
  });
  child.on("exit", (code, signal) => process.exit(signal ? 128 + constants.signals[signal] : code));
};
