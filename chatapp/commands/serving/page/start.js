// The keys go to the chat as soon as it is there, without a click.
new MutationObserver((_, observer) => {
  if (document.body.classList.contains("-first-byte")) {
    observer.disconnect();
    document.querySelector("textarea").focus();
  }
}).observe(document.body, { attributes: true });

// At a new size the terminal measures its characters anew, after it has counted how many fit.
addEventListener("resize", () => requestAnimationFrame(() => window.onresize()));
