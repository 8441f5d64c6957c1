// ---- distributions: which metric
for (const choice of document.querySelectorAll(".choice")) {
  choice.addEventListener("change", (event) => {
    for (const part of document.querySelectorAll(`[data-choice="${choice.dataset.group}"]`)) {
      part.hidden = part.dataset.metric !== event.target.value;
    }
  });
}

