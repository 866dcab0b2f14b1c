"use strict";
(() => {
  const root = document.documentElement;
  const theme = document.querySelector(".theme");
  const themes = ["auto", "light", "dark"];
  let chosen = 0;
  theme.hidden = false;
  theme.addEventListener("click", () => {
    chosen = (chosen + 1) % themes.length;
    if (chosen) root.dataset.theme = themes[chosen];
    else delete root.dataset.theme;
    theme.textContent = "Theme: " + themes[chosen];
  });

  const controls = document.querySelector(".controls");
  if (!controls) return;
  controls.hidden = false;
  const shots = [...document.querySelectorAll(".shot")];
  const classes = [...document.querySelectorAll(".class")];
  const count = document.querySelector(".count");
  const filter = () => {
    const split = controls.querySelector("input:checked").value;
    const select = controls.querySelector("select");
    const wanted = select ? select.value : "";
    for (const shot of shots) shot.hidden = split !== "" && shot.dataset.split !== split;
    for (const part of classes) {
      part.hidden = (wanted !== "" && part.dataset.class !== wanted) ||
        ![...part.querySelectorAll(".shot")].some((shot) => !shot.hidden);
    }
    count.textContent = visible().length + " shown";
  };
  const visible = () => shots.filter((shot) => !shot.hidden && !shot.closest(".class").hidden);
  controls.addEventListener("change", filter);
  filter();

  const dialog = document.querySelector("dialog");
  const picture = dialog.querySelector("img");
  let current = null;
  const show = (shot) => {
    current = shot;
    const image = shot.querySelector("img");
    picture.src = image.src;
    picture.alt = image.alt;
    picture.className = image.className;
    for (const name of ["label", "splitname", "key", "size", "place"]) {
      dialog.querySelector("." + name).textContent = shot.dataset[name];
    }
    if (!dialog.open) dialog.showModal();
  };
  const step = (by) => {
    const all = visible();
    show(all[(all.indexOf(current) + by + all.length) % all.length]);
  };
  for (const shot of shots) shot.addEventListener("click", () => show(shot));
  dialog.querySelector(".previous").addEventListener("click", () => step(-1));
  dialog.querySelector(".next").addEventListener("click", () => step(1));
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { if (current) current.focus(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    else if (event.key === "ArrowRight") step(1);
    else return;
    event.preventDefault();
  });
})();
